"""What tests of the library share: garbage is collected fast, as often as they ask for it."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _frozen() -> None:
    """What was there before a test is passed by: a step that runs out of memory collects garbage,
    and each collection would look at all that other tests have imported."""
    gc.collect()
    gc.freeze()
