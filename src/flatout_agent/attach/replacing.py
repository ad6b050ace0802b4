"""Replace a name of a module, class or object, and restore it.

The one mechanism for that in the agent. What is put back is what the owner itself held, as it held
it: a `staticmethod` stays one, and a name that a class inherits is deleted again. What
other code has put there since stays: it calls ours, which passes the call on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Undo = Callable[[], None]
ABSENT = object()
"""The owner itself does not have the name."""


class Replacement:
    """Values under names of `owner` from `put` to `back`; both may be called again and again."""

    def __init__(self, owner: Any, values: Mapping[str, Any]) -> None:
        self.owner, self.values = owner, dict(values)
        self._originals = {name: own_value(owner, name) for name in values}

    def put(self) -> None:
        """Put the values there; not where something else stands by now."""
        for name, value in self.values.items():
            if own_value(self.owner, name) is self._originals[name]:
                setattr(self.owner, name, value)

    def back(self) -> None:
        """Put back what was there; not where something else stands by now."""
        for name, value in self.values.items():
            if own_value(self.owner, name) is not value:
                continue
            if self._originals[name] is ABSENT:
                delattr(self.owner, name)  # that of the base class shows again
            else:
                setattr(self.owner, name, self._originals[name])


def own_value(owner: Any, name: str) -> Any:
    """What the owner itself holds under this name, unbound; ABSENT: nothing."""
    if hasattr(getattr(type(owner), name, None), "__set__"):  # a slot, or a function's defaults
        return getattr(owner, name, ABSENT)
    return getattr(owner, "__dict__", {}).get(name, ABSENT)


def replaced(owner: Any, name: str, value: Any) -> Undo:
    """Make `owner.name` be `value`; returns the way back."""
    replacement = Replacement(owner, {name: value})
    replacement.put()
    return replacement.back


def in_reverse(undos: Iterable[Undo]) -> Undo:
    """One way back for several: the last first."""
    listed = list(undos)

    def undo() -> None:
        for back in reversed(listed):
            back()

    return undo
