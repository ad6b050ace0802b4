"""What the laws share: parsed sources, which stay and cost the tests that follow nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _frozen_afterwards() -> Iterator[None]:
    """A million nodes of syntax trees would be looked at in each collection of garbage."""
    yield
    gc.collect()
    gc.freeze()
