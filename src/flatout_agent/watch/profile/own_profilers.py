"""Profilers that the script itself starts, kept from recording.

This is only for a second run made for recording, as torch allows one profiler at a time. The
script's own calls still work, but their results hold no events.
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
"""The only function in the results of Python's profiler."""


class _HeldOff:
    """Replaces the start and the end of torch's profilers, except the agent's own."""

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
    """A result without events. torch's own can be saved only once, but the script saves each of its
    results.
    """

    def __init__(self, result: Any) -> None:
        self._result = result
        self._trace = b""

    def save(self, path: str) -> None:
        """Save as torch does, but without an error if the file cannot be written."""
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
    """Keep the script's profilers from recording; returns the undo function."""
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
    """Add a row for pstats, which raises an error if nothing at all was called."""

    def snapshot_stats(profiler: Any) -> None:
        original(profiler)
        profiler.stats = profiler.stats or {HELD_OFF: (1, 1, 0.0, 0.0, {})}

    return snapshot_stats


def _without_marks(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Suppress the script's own step marks, which would appear beside ours."""

    def start(profiler: Any) -> None:
        if not recording.busy():
            profiler.record_steps = False
        original(profiler)

    return start
