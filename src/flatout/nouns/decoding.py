"""Nouns from parsed JSON of foreign origin: values of the wrong type are refused.

The host uses no other reader. The caller decides whether a refusal means an unknown fact or an
error. (The agent's records and orders are read by `wire.decode`, which trusts the other side.)
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Refuse = Callable[[str, Any], None]
"""Called with the place and the value of each refused value; may raise."""
REFUSED = object()
MISSING = object()
"""Stands for a missing field that has no default."""


def decode(
    cls: type[T],
    raw: Any,
    refuse: Refuse = lambda place, value: None,
    where: str = "",
    null_is_nan: bool = False,
    absent_is_none: bool = False,
) -> T | None:
    """`cls`, a frozen dataclass, from parsed JSON, or None if `raw` does not suffice.

    A value of the wrong type is reported to `refuse`, and the field keeps its default. Unknown
    keys are ignored: a newer version may have written them.

    null_is_nan: null in place of a number means NaN, which JSON cannot express.
    absent_is_none: an optional field without a default may be missing and is then None.
    """
    return _Reader(refuse, null_is_nan, absent_is_none).noun(cls, raw, where)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class _Reader:
    refuse: Refuse
    null_is_nan: bool
    absent_is_none: bool

    def noun(self, cls: type[T], raw: Any, where: str) -> T | None:
        if not isinstance(raw, dict):
            self.refuse(where or cls.__name__, raw)
            return None
        hints = _hints(typing.cast("Any", cls))
        values = {}
        complete = True
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            place = f"{where}.{field.name}" if where else field.name
            value = self._field(field, hints[field.name], raw, place)
            if value is not REFUSED:
                values[field.name] = value
            elif _has_no_default(field):
                complete = False
        if not complete:
            self.refuse(where or cls.__name__, raw)
        return cls(**values) if complete else None

    def _field(self, field: dataclasses.Field[Any], hint: Any, raw: Any, place: str) -> Any:
        if field.name in raw:
            value = self.value(hint, raw[field.name], place)
            if value is REFUSED:
                self.refuse(place, raw[field.name])
            return value
        if not _has_no_default(field):
            return REFUSED
        if self.absent_is_none and type(None) in typing.get_args(hint):
            return None
        self.refuse(place, MISSING)
        return REFUSED

    def value(self, hint: Any, raw: Any, where: str) -> Any:
        """`raw` as a value of a field of this type, or REFUSED."""
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            if raw is None:
                return None
            return self.value(next(arg for arg in args if arg is not type(None)), raw, where)
        if origin is tuple:
            return self._tuple(args, raw, where)
        if origin is dict:
            return self._table(args[1], raw, where)
        if origin is typing.Literal:
            return raw if any(raw == arg and type(raw) is type(arg) for arg in args) else REFUSED
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            noun = self.noun(hint, raw, where) if isinstance(raw, dict) else None
            return REFUSED if noun is None else noun
        return self._plain(hint, raw)

    def _tuple(self, args: tuple[Any, ...], raw: Any, where: str) -> Any:
        if not isinstance(raw, list | tuple):
            return REFUSED
        kinds = (args[0],) * len(raw) if args[-1] is Ellipsis else args
        if len(kinds) != len(raw):
            return REFUSED
        values = []
        for number, (kind, value) in enumerate(zip(kinds, raw, strict=True)):
            place = f"{where}[{number}]"
            values.append(self.value(kind, value, place))
        return REFUSED if any(value is REFUSED for value in values) else tuple(values)

    def _table(self, kind: Any, raw: Any, where: str) -> Any:
        if not isinstance(raw, dict):
            return REFUSED
        table = {key: self.value(kind, value, f"{where}.{key}") for key, value in raw.items()}
        return REFUSED if any(value is REFUSED for value in table.values()) else table

    def _plain(self, hint: Any, raw: Any) -> Any:
        """A bool does not count as a number; an integer is accepted for a float."""
        if hint is Any:
            return raw
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            members = {member.value: member for member in hint}
            return members.get(raw, REFUSED) if isinstance(raw, str) else REFUSED
        if hint is float and type(raw) is int:
            return float(raw)
        if hint is float and raw is None and self.null_is_nan:
            return math.nan
        return raw if type(raw) is hint else REFUSED
