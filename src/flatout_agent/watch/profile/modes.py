"""Dispatch modes that are entered at the end of one step and left at the end of another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)


class StepMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Sees the operators of the thread that calls `enter`, until `leave`.

    A process forked meanwhile leaves the mode at once, since a loader's worker may live as long as
    the program.
    """

    supports_higher_order_operators = True

    def enter(self) -> None:
        """See all operators from now on."""
        _entered.append(self)
        _base.__enter__(self)

    def leave(self) -> None:
        """Stop seeing operators, even below modes that the program has entered since and not left
        yet.
        """
        _entered[:] = [mode for mode in _entered if mode is not self]
        stack = _get_current_dispatch_mode_stack()
        at = next((number for number, mode in enumerate(stack) if mode is self), len(stack))
        # As torch's base class does it: the modes' own extra actions are for the program to call.
        for mode in reversed(stack[at:]):
            _base.__exit__(mode, None, None, None)
        for mode in stack[at + 1 :]:
            _base.__enter__(mode)


@contextmanager
def without_modes() -> Iterator[None]:
    """Hide the enclosed computations from all dispatch modes.

    torch's own `_disable_current_modes` would load its tracers and sympy.
    """
    modes = [_pop_mode() for _ in _get_current_dispatch_mode_stack()]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


_base: Any = TorchDispatchMode
_entered: list[StepMode] = []


def _forked() -> None:
    for mode in reversed(_entered):
        mode.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
