"""Profilers that the script itself starts, kept from recording.

Only for a second run, made to be recorded: torch knows one profiler at a time. The script's own
calls go on, and what they return holds no events.
"""

from __future__ import annotations

import contextlib
import cProfile
from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.attach.replacing import Replacement, Undo, in_reverse
from flatout_agent.watch.profile import recording

HELD_OFF = ("~", 0, "<held off by flatout>")
"""The one function in what Python's profiler has seen."""


class _HeldOff:
    """In place of how torch's profilers begin and end, but for the agent's own."""

    def __init__(self) -> None:
        module: Any = torch.autograd.profiler
        self._prepare, self._enable = module._prepare_profiler, module._enable_profiler
        self._disable = module._disable_profiler
        with module.profile() as empty:  # for the script to read, as if it were its own
            pass
        self._result = _Empty(empty.kineto_results)

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        return self._prepare(*args, **kwargs) if recording.busy() else None

    def enable(self, *args: Any, **kwargs: Any) -> Any:
        return self._enable(*args, **kwargs) if recording.busy() else None

    def disable(self) -> Any:
        return self._disable() if recording.busy() else self._result


class _Empty:
    """A result without events: torch's can be saved once, the script saves each of its own."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self._trace = b""

    def save(self, path: str) -> None:
        """As torch does, without an error where the file cannot be written."""
        with contextlib.suppress(OSError):
            if self._trace:
                with open(path, "wb") as file:  # noqa: PTH123
                    file.write(self._trace)
            else:
                self._result.save(path)
                with open(path, "rb") as file:  # noqa: PTH123
                    self._trace = file.read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)


def hold_off() -> Undo:
    """From now on the script's profilers record nothing; returns the way back."""
    module: Any = torch.autograd.profiler
    held = _HeldOff()
    functions = Replacement(
        module,
        {
            "_prepare_profiler": held.prepare,
            "_enable_profiler": held.enable,
            "_disable_profiler": held.disable,
            **{
                name: _ours_alone(getattr(module, name))
                for name in ("_run_on_profiler_start", "_run_on_profiler_stop")
                if hasattr(module, name)
            },
        },
    )
    starts = Replacement(
        torch.profiler.profile, {"start": _without_marks(torch.profiler.profile.start)}
    )
    of_python = Replacement(
        cProfile.Profile,
        {
            "enable": lambda *args, **kwargs: None,
            "snapshot_stats": _with_a_row(cProfile.Profile.snapshot_stats),
        },
    )
    for replacement in (functions, starts, of_python):
        replacement.put()
    recording.others_held_off(True)
    return in_reverse(
        [
            lambda: recording.others_held_off(False),
            functions.back,
            starts.back,
            of_python.back,
        ]
    )


def _ours_alone(original: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        if recording.busy():
            original()

    return call


def _with_a_row(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """For pstats, which raises an error where nothing at all was called."""

    def snapshot_stats(profiler: Any) -> None:
        original(profiler)
        profiler.stats = profiler.stats or {HELD_OFF: (1, 1, 0.0, 0.0, {})}

    return snapshot_stats


def _without_marks(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """The script's own marks of its steps would stand beside ours."""

    def start(profiler: Any) -> None:
        if not recording.busy():
            profiler.record_steps = False
        original(profiler)

    return start
