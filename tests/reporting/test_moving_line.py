"""Long work says what it does: a line that moves, or one a minute where nothing can."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from flatout.reporting import moving_line
from flatout.reporting.moving_line import EVERY_S, SelfTestView


def test_in_a_pipe_there_is_a_line_at_once_and_one_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 1.0, EVERY_S, EVERY_S, EVERY_S + 1])
    monkeypatch.setattr(moving_line, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    shown = io.StringIO()
    with SelfTestView(Console(file=shown)) as view:
        assert shown.getvalue() == f"{SelfTestView.first}\n"
        for name in ("import torch", "matmul", "compile"):
            view.step(name)
    assert shown.getvalue().splitlines()[1:] == ["trying: matmul"]
