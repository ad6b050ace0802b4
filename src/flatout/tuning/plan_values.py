"""Values of one table in a hand-edited file, each asked for by name and type."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


class Refused(Exception):  # noqa: N818 - the reader turns it into the user's error, with the path
    """The file cannot be used; what to do about it."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class Values:
    """One table. `where` is its dotted name, empty for the document itself."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def only(self, *names: str) -> None:
        """Refuse keys other than these."""
        for name in self.raw:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                cure = f"did you mean {near[0]!r}?" if near else f"take it out ({_known(names)})"
                raise Refused(f"{self._path(name)} is not known", cure)

    def text(self, name: str) -> str | None:
        """A string, or None where the key is absent."""
        value = self.raw.get(name)
        if value is not None and not isinstance(value, str):
            self._wrong(name, "a text in quotes")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, empty where the key is absent."""
        value = self.raw.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._wrong(name, "a list of texts")
        return tuple(value)

    def whole(self, name: str) -> int | None:
        """A whole number from 0."""
        value = self.raw.get(name)
        if value is not None and (type(value) is not int or value < 0):
            self._wrong(name, "a whole number")
        return value

    def number(self, name: str) -> float | None:
        """A finite number from 0."""
        value = self.raw.get(name)
        if value is None:
            return None
        if not _is_number(value) or value < 0:
            self._wrong(name, "a number")
        return float(value)

    def pair(self, name: str) -> tuple[float, float] | None:
        """Two numbers, the smaller one first."""
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or not all(map(_is_number, value)):
            self._wrong(name, "two numbers, as in [1.5, 1.7]")
        return float(value[0]), float(value[1])

    def table(self, name: str) -> Values:
        """A table, empty where the key is absent."""
        value = self.raw.get(name, {})
        if not isinstance(value, Mapping):
            self._wrong(name, "a table")
        return Values(value, self._path(name))

    def tables(self, name: str) -> list[Values]:
        """A list of tables, empty where the key is absent."""
        value = self.raw.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            self._wrong(name, "a list of tables")
        return [Values(item, f"{self._path(name)}[{index}]") for index, item in enumerate(value)]

    def like(self, name: str, examples: Sequence[Any]) -> None:
        """Refuse a value whose type is that of none of the examples; absent is fine."""
        if name not in self.raw:
            return
        kinds = {type(example) for example in examples}
        kind = type(self.raw[name])
        if kind not in kinds and not (kind is int and float in kinds):
            shown = ", ".join(repr(example) for example in examples)
            self._wrong(name, f"of the kind of {shown}")

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _wrong(self, name: str, wanted: str) -> NoReturn:
        raise Refused(
            f"{self._path(name)} = {self.raw[name]!r} is not {wanted}",
            f"make {self._path(name)} {wanted}, or make the plan anew: flatout tune",
        )


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _known(names: Sequence[str]) -> str:
    return f"known here: {', '.join(names)}" if names else "there is nothing to set"
