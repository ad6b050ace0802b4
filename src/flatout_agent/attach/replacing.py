"""Replace a name of a module, class or object, and restore it.

This is the agent's one mechanism for that. The owner gets back exactly what it held: a
`staticmethod` stays one, and a name that a class inherits is deleted again. A replacement that
other code has made since stays: it calls ours, which passes the call on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Undo = Callable[[], None]
ABSENT = object()
"""Marks that the owner itself does not have the name."""


class Replacement:
    """Values under names of `owner` from `put` to `back`; both may be called again and again."""

    def __init__(self, owner: Any, values: Mapping[str, Any]) -> None:
        self.owner, self.values = owner, dict(values)
        self._originals = {name: own_value(owner, name) for name in values}

    def put(self) -> None:
        """Put the values there, except where something else is by now."""
        for name, value in self.values.items():
            if own_value(self.owner, name) is self._originals[name]:
                setattr(self.owner, name, value)

    def back(self) -> None:
        """Restore the originals, except where something else is by now."""
        for name, value in self.values.items():
            if own_value(self.owner, name) is not value:
                continue
            if self._originals[name] is ABSENT:
                delattr(self.owner, name)  # that of the base class shows again
            else:
                setattr(self.owner, name, self._originals[name])


def own_value(owner: Any, name: str) -> Any:
    """The owner's own value under this name, unbound, or ABSENT."""
    if hasattr(getattr(type(owner), name, None), "__set__"):  # a slot, or a function's defaults
        return getattr(owner, name, ABSENT)
    return getattr(owner, "__dict__", {}).get(name, ABSENT)


def replaced(owner: Any, name: str, value: Any) -> Undo:
    """Set `owner.name` to `value`; returns the undo function."""
    replacement = Replacement(owner, {name: value})
    replacement.put()
    return replacement.back


def in_reverse(undos: Iterable[Undo]) -> Undo:
    """One undo function for several, the last first."""
    listed = list(undos)

    def undo() -> None:
        for back in reversed(listed):
            back()

    return undo
