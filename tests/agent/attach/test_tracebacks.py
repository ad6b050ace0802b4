"""What a program prints of its errors has no frames of the agent."""

from __future__ import annotations

import sys
import traceback
import types
from typing import Any

import pytest

from flatout_agent.attach import tracebacks
from flatout_agent.attach.replacing import in_reverse


def failing() -> None:
    """Through a function of the agent."""
    in_reverse([lambda: 1 / 0])()


@pytest.mark.parametrize("given", [True, False])
def test_a_notebook_shows_errors_without_our_frames(
    given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []

    class Shell:
        def showtraceback(self, exc_tuple: Any = None, **options: Any) -> None:
            _, error, trace = exc_tuple or sys.exc_info()
            shown.append((traceback.extract_tb(trace or error.__traceback__), options))

    shell = Shell()
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    undo = tracebacks.install()
    try:
        failing()
    except ZeroDivisionError:
        shell.showtraceback(sys.exc_info() if given else None, tb_offset=1)
    undo()
    ((frames, options),) = shown
    assert [frame.name for frame in frames][1:] == ["failing", "<lambda>"]
    assert options == {"tb_offset": 1}
    assert "showtraceback" not in vars(shell)
