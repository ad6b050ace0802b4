"""A profile is a sample: on cores that other tests take, one may miss a fault. It is taken again,
as a user would whom HOST014 tells of other programs."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.flaky(reruns=2))
