"""Read the tables of this folder; errors say what is malformed, and where."""

from __future__ import annotations

import datetime
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

from packaging.version import InvalidVersion, Version

SYSTEMS = ("linux-x86_64", "linux-aarch64", "windows-x86_64", "macos-arm64", "macos-x86_64")
"""The systems that appear in the tables."""


class Release(Protocol):
    """An entry for one release."""

    @property
    def version(self) -> str:
        """Major and minor: 12.8."""


Known = TypeVar("Known", bound=Release)


class Row:
    """One table of a TOML file, whose fields are read by name and type."""

    def __init__(self, where: str, fields: Mapping[str, object]) -> None:
        self.where = where
        self.fields = fields

    def text(self, name: str) -> str:
        """A text; it must be present and not empty."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self.where}: {name} must be text, not {value!r}")
        return value

    def text_or_none(self, name: str) -> str | None:
        """A text, or None if the field is absent."""
        return self.text(name) if name in self.fields else None

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if the field is absent."""
        value = self.fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ValueError(f"{self.where}: {name} must be a list of texts, not {value!r}")
        return tuple(value)

    def month(self, name: str) -> str:
        """A month written as YYYY-MM."""
        value = self.text(name)
        if not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", value):
            raise ValueError(f"{self.where}: {name} must be YYYY-MM, not {value!r}")
        return value

    def capability(self, name: str) -> tuple[int, int]:
        """A compute capability written as "8.6"."""
        return self._capability(name, self.text(name))

    def capabilities(self, name: str) -> tuple[tuple[int, int], ...]:
        """Compute capabilities written as "7.5 8.0 8.6": at least one, the lowest first."""
        capabilities = tuple(self._capability(name, text) for text in self.text(name).split())
        if not capabilities or list(capabilities) != sorted(set(capabilities)):
            raise ValueError(f"{self.where}: {name} must be ascending and not empty")
        return capabilities

    def _capability(self, name: str, value: str) -> tuple[int, int]:
        if not re.fullmatch(r"\d+\.\d", value):
            raise ValueError(f"{self.where}: {name} must be like 8.6, not {value!r}")
        major, minor = value.split(".")
        return int(major), int(minor)

    def source(self) -> str:
        """The address of the official page with these facts."""
        value = self.text("source")
        if not value.startswith("https://"):
            raise ValueError(f"{self.where}: source must be an address, not {value!r}")
        return value

    def row(self, name: str) -> Row:
        """The one table written under [name]."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            raise ValueError(f"{self.where}: [{name}] must be a table")  # noqa: TRY004
        return Row(f"{self.where} {name}", value)

    def rows(self, name: str) -> tuple[Row, ...]:
        """The tables written under [[name]]."""
        value = self.fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(fields, dict) for fields in value):
            raise ValueError(f"{self.where}: [[{name}]] must be tables")
        labels = (
            fields.get("version") or fields.get("name") or f"number {place}"
            for place, fields in enumerate(value, 1)
        )
        return tuple(
            Row(f"{self.where} {name} {label}", fields)
            for label, fields in zip(labels, value, strict=True)
        )


@cache
def read(name: str) -> Row:
    """The table in the file of that name in this folder: "cuda.toml"."""
    return parse(Path(__file__).with_name(name).read_text(encoding="utf-8"), name)


def parse(text: str, name: str) -> Row:
    """The table in a text, which must have a `checked` date. name: its name in errors."""
    try:
        table = Row(name, tomllib.loads(text))
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"{name}: not TOML: {problem}") from problem
    checked = table.text("checked")
    try:
        datetime.date.fromisoformat(checked)
    except ValueError as problem:
        raise ValueError(f"{name}: checked must be YYYY-MM-DD, not {checked!r}") from problem
    return table


def releases(name: str, read_row: Callable[[Row], Known]) -> tuple[Known, ...]:
    """The entries [[release]] of that file, the oldest first."""
    entries = tuple(read_row(row) for row in read(name).rows("release"))
    ordered(tuple(entry.version for entry in entries), name)
    return entries


def release(entries: Iterable[Known], version: str) -> Known | None:
    """The entry of a full version ("2.7.1+cu128"), by major and minor, or None."""
    wanted = minor(version)
    return next((entry for entry in entries if entry.version == wanted), None)


def number(version: str) -> Version | None:
    """The version in a text, or None if it is not one."""
    try:
        return Version(version.strip())
    except InvalidVersion:
        return None


def minor(version: str) -> str | None:
    """Major and minor of a version, as text: "2.7" of "2.7.1+cu128" and of "2.7.0a0+git12ab".

    For a text that only starts like a version ("2.7.0-custom build"), the start counts.
    """
    match = re.match(r"\s*[vV]?(\d+)\.(\d+)", version)
    return f"{int(match[1])}.{int(match[2])}" if match else None


def ordered(versions: tuple[str, ...], name: str) -> None:
    """Raise ValueError for a table whose versions are not strictly ascending."""
    numbers = [Version(version) for version in versions]
    for earlier, later in itertools.pairwise(numbers):
        if not earlier < later:
            raise ValueError(f"{name}: {later} must not come after {earlier}")
