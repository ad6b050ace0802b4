from __future__ import annotations

import pytest

from commands.called import Flatout


@pytest.fixture
def flat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Flatout:
    return Flatout(capsys, monkeypatch)
