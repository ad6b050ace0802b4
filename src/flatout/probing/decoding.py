"""Facts from JSON that somebody else wrote: what does not have the noun's type is refused."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Refuse = Callable[[str], None]
"""Called with the place of each value that was refused; may raise."""
REFUSED = object()


def decode(cls: type[T], raw: Any, refuse: Refuse, where: str = "") -> T | None:
    """`cls`, a frozen dataclass of facts, from parsed JSON; None where it cannot be made of `raw`.

    A value of the wrong type is reported to `refuse` and left at the field's default; keys that
    the noun does not have are passed over: a newer version may have written them.
    """
    if not isinstance(raw, dict):
        refuse(where or cls.__name__)
        return None
    hints = _hints(typing.cast("Any", cls))
    values = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        if item.name not in raw:
            continue
        place = f"{where}.{item.name}" if where else item.name
        value = _value(hints[item.name], raw[item.name], refuse, place)
        if value is REFUSED:
            refuse(place)
        else:
            values[item.name] = value
    try:
        return cls(**values)
    except TypeError:  # a field without a default is missing or was refused
        refuse(where or cls.__name__)
        return None


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _value(hint: Any, raw: Any, refuse: Refuse, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if raw is None:
            return None
        return _value(next(arg for arg in args if arg is not type(None)), raw, refuse, where)
    if origin is tuple:
        return _tuple(args, raw, refuse, where)
    if origin is dict:
        plain = isinstance(raw, dict) and all(isinstance(item, str) for item in raw.values())
        return dict(raw) if plain else REFUSED
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        found = decode(hint, raw, refuse, where) if isinstance(raw, dict) else None
        return REFUSED if found is None else found
    return _plain(hint, raw)


def _tuple(args: tuple[Any, ...], raw: Any, refuse: Refuse, where: str) -> Any:
    if not isinstance(raw, list | tuple):
        return REFUSED
    if args[-1] is Ellipsis:
        found = [_value(args[0], item, refuse, f"{where}[{n}]") for n, item in enumerate(raw)]
    elif len(raw) == len(args):
        pairs = zip(args, raw, strict=True)
        found = [_value(arg, item, refuse, f"{where}[{n}]") for n, (arg, item) in enumerate(pairs)]
    else:
        return REFUSED
    return REFUSED if any(item is REFUSED for item in found) else tuple(found)


def _plain(hint: type[Any], raw: Any) -> Any:
    """A bool is no number here, and a whole number may stand for a float."""
    if hint is float and type(raw) is int:
        return float(raw)
    return raw if type(raw) is hint else REFUSED
