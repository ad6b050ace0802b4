from __future__ import annotations

import pytest

from launching.fake_tool import FakeTool


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> FakeTool:
    """The engine's program, installed and without any answer."""
    return FakeTool(monkeypatch)
