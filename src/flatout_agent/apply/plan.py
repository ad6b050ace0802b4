"""flatout.toml, read and checked in one place for the host, which writes it, and the library.

The reader of this file decides what a plan may hold: the host parses it with tomlkit, the library
with tomllib, and both give the document to `read`. Unknown keys, values of the wrong type and
boosts that do not exist are refused: a half-understood plan would be half applied. Parameters may
have values that a tuning would not try, if they are of the same type.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from flatout_agent import boosts

KEYS = ("version", "command", "script_sha256", "created")
TABLES = ("measured", "boosts", "ranks", "machine", "job")
VERSION = 1
"""The newest known version of the file."""
REMOVED = {
    "batch-size": "give the DataLoader the larger batch_size",
    "cudnn-attention": "use torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION)",
    "device-prefetch": "copy the next batch with non_blocking=True, or use flatout.loader",
    "eval-without-grad": "evaluate under torch.no_grad()",
    "liger-kernels": "give TrainingArguments use_liger_kernel=True",
    "onednn-matmul": "call torch.set_float32_matmul_precision('medium'), on a CPU without AMX",
    "passive-waiting": "set OMP_WAIT_POLICY=PASSIVE before Python starts",
    "scaled-jpeg": "call draft() on images that are shrunk right after they are opened",
    "sdpa-attention": "load the model with attn_implementation='sdpa'",
}
"""Boosts that plans of earlier versions may contain, and what to do instead."""


class PlanError(Exception):
    """The file cannot be used; `next_step` says what to do about it."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


@dataclass(frozen=True)
class WrittenBoost:
    """A table `[boosts.ID]`. gain: measured speed-up when it was added (1.5 = 50 % faster)."""

    id: str
    params: dict[str, Any] = field(default_factory=dict)
    gain: float | None = None
    risk: str | None = None


@dataclass(frozen=True)
class WrittenRanks:
    """The table `[ranks]`: the result of a trial of several ranks; values that it lacks
    are None.
    """

    asked: int | None
    count: int | None
    speedup: float | None
    interval: tuple[float, float] | None
    efficiency: float | None
    losses: str | None
    machine: str | None
    script_sha256: str | None
    native: str | None = None
    scale_batch: bool | None = None


@dataclass(frozen=True)
class WrittenPlan:
    """The file's contents, in its order; values that it lacks are None."""

    boosts: tuple[WrittenBoost, ...]
    removed: tuple[str, ...]
    """Those of its boosts that this flatout no longer has: see REMOVED."""
    command: tuple[str, ...]
    script_sha256: str | None
    created: str | None
    speedup: float | None
    speedup_interval: tuple[float, float] | None
    pairs: int | None
    compile_s: float | None
    pays_after_steps: int | None
    machine: PlanTable | None
    """The machine, for the host to compare; not checked here."""
    ranks: WrittenRanks | None
    job: PlanTable
    """The program without any boost; not checked here."""


def text(path: Path) -> str:
    """The file's text. Raises PlanError if there is no file or it is not text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        message, cure = f"there is no plan at {path}", "make one: flatout tune train.py"
    except OSError as error:
        message, cure = f"cannot read {path}: {error.strerror}", "check the path of the plan"
    except UnicodeDecodeError:
        message, cure = f"{path} is not a text file in UTF-8", "check the path of the plan"
    raise PlanError(message, cure)


def read(document: Mapping[str, Any], path: Path) -> WrittenPlan:
    """The plan in a parsed file. Raises PlanError if it cannot be used."""
    with naming(path):
        return _plan(document)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's path before the message of a PlanError raised inside."""
    try:
        yield
    except PlanError as error:
        raise PlanError(f"{path}: {error.message}", error.next_step) from None


def _plan(document: Mapping[str, Any]) -> WrittenPlan:
    top = PlanTable(document, "")
    version = top.whole("version")
    if not version:
        raise PlanError("it does not say `version`", f"add the line: version = {VERSION}")
    if version > VERSION:
        raise PlanError(
            f"it has version {version}, this flatout knows version {VERSION}",
            "update flatout, or make the plan anew: flatout tune train.py",
        )
    top.only(*KEYS, *TABLES)
    measured = top.table("measured")
    measured.only("speedup", "interval", "pairs", "compile_s", "pays_after_steps")
    tables = top.table("boosts")
    return WrittenPlan(
        boosts=tuple(_boost(name, tables) for name in tables.raw if name not in REMOVED),
        removed=tuple(name for name in tables.raw if name in REMOVED),
        command=top.texts("command"),
        script_sha256=top.text("script_sha256"),
        created=top.text("created"),
        speedup=measured.number("speedup"),
        speedup_interval=measured.pair("interval"),
        pairs=measured.whole("pairs"),
        compile_s=measured.number("compile_s"),
        pays_after_steps=measured.whole("pays_after_steps"),
        machine=top.table("machine") if "machine" in document else None,
        ranks=_ranks(top.table("ranks")) if "ranks" in document else None,
        job=top.table("job"),
    )


def _ranks(table: PlanTable) -> WrittenRanks:
    table.only(*(field.name for field in dataclasses.fields(WrittenRanks)))
    return WrittenRanks(
        asked=table.whole("asked"),
        count=table.whole("count"),
        speedup=table.number("speedup"),
        interval=table.pair("interval"),
        efficiency=table.number("efficiency"),
        losses=table.text("losses"),
        machine=table.text("machine"),
        script_sha256=table.text("script_sha256"),
        native=table.text("native"),
        scale_batch=table.flag("scale_batch"),
    )


def _boost(boost_id: str, tables: PlanTable) -> WrittenBoost:
    names = boosts.names()
    if boost_id not in names:
        near = difflib.get_close_matches(boost_id, names, n=2)
        cure = f"did you mean {' or '.join(near)}?" if near else f"known are: {', '.join(names)}"
        raise PlanError(f"there is no boost {boost_id!r}", cure)
    table = tables.table(boost_id)
    table.only("gain", "risk", "params")
    params = table.table("params")
    choices = boosts.load(boost_id).BOOST.params
    params.only(*choices)
    for name, values in choices.items():
        params.like(name, values)
    return WrittenBoost(boost_id, dict(params.raw), table.number("gain"), table.text("risk"))


class PlanTable:
    """A table whose values are read by name and type.

    `where` is its dotted name, empty for the document itself. All raise PlanError.
    """

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def only(self, *names: str) -> None:
        """Refuse keys other than these."""
        for name in self.raw:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                cure = f"did you mean {near[0]!r}?" if near else f"take it out ({_listing(names)})"
                raise PlanError(f"{self._path(name)} is not known", cure)

    def text(self, name: str) -> str | None:
        """A string, or None if the key is absent."""
        value = self.raw.get(name)
        if value is not None and not isinstance(value, str):
            self._wrong(name, "a text in quotes")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, empty if the key is absent."""
        value = self.raw.get(name, [])
        if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
            self._wrong(name, "a list of texts")
        return tuple(value)

    def whole(self, name: str) -> int | None:
        """A whole number of at least 0."""
        value = self.raw.get(name)
        if value is not None and (type(value) is not int or value < 0):
            self._wrong(name, "a whole number")
        return value

    def flag(self, name: str) -> bool | None:
        """True or false, or None if the key is absent."""
        value = self.raw.get(name)
        if value is not None and not isinstance(value, bool):
            self._wrong(name, "true or false")
        return value

    def number(self, name: str) -> float | None:
        """A finite number of at least 0."""
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

    def table(self, name: str) -> PlanTable:
        """A table, empty if the key is absent."""
        value = self.raw.get(name, {})
        if not isinstance(value, Mapping):
            self._wrong(name, "a table")
        return PlanTable(value, self._path(name))

    def tables(self, name: str) -> list[PlanTable]:
        """A list of tables, empty if the key is absent."""
        value = self.raw.get(name, [])
        if not isinstance(value, list) or not all(
            isinstance(element, Mapping) for element in value
        ):
            self._wrong(name, "a list of tables")
        return [
            PlanTable(element, f"{self._path(name)}[{index}]")
            for index, element in enumerate(value)
        ]

    def like(self, name: str, examples: Sequence[Any]) -> None:
        """Refuse a value whose type matches none of the examples; an absent value is fine."""
        if name not in self.raw:
            return
        kinds = {type(example) for example in examples}
        kind = type(self.raw[name])
        if kind not in kinds and not (kind is int and float in kinds):
            shown = ", ".join(repr(example) for example in examples)
            self._wrong(name, f"of the kind of {shown}")

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _wrong(self, name: str, expected: str) -> NoReturn:
        raise PlanError(
            f"{self._path(name)} = {self.raw[name]!r} is not {expected}",
            f"make {self._path(name)} {expected}, or make the plan anew: flatout tune train.py",
        )


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]  # a number


def _listing(names: Sequence[str]) -> str:
    return f"known here: {', '.join(names)}" if names else "there is nothing to set"
