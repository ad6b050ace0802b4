"""Read Kineto traces into columns."""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.nouns.errors import UserError
from flatout.profiling.trace import decoding, widths
from flatout.profiling.trace.recording import Category, Events, Memory, Recording
from flatout.profiling.trace.stream import NEXT_STEP, Stream

CATEGORIES = {
    "cpu_op": Category.OPERATOR,
    "operator": Category.OPERATOR,
    "python_function": Category.PYTHON,
    "user_annotation": Category.ANNOTATION,
    "kernel": Category.KERNEL,
    "hpu_op": Category.KERNEL,
    "mtia_ccp_events": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
}
RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
LONGEST_US = 1e13
"""Events further than this from the others have no time that can be meant."""
COLUMNS = {
    "name": np.int32,
    "category": np.int8,
    "thread": np.int32,
    "external": np.int64,
    "correlation": np.int64,
    "device": np.int32,
    "stream": np.int32,
    "moved": np.int64,
    "occupancy": np.float32,
    "shapes": np.int32,
    "dtypes": np.int32,
    "concrete": np.int32,
    "sequence": np.int64,
    "forward_thread": np.int64,
}
Column = NDArray[Any]


def read(paths: Sequence[Path]) -> tuple[Recording, ...]:
    """Read traces, in order of their ranks; a folder stands for the traces in it.

    Raises UserError for a file that cannot be read, is no trace or holds no events.
    """
    found = [_read(path, number) for number, path in enumerate(_files(paths))]
    return tuple(sorted(found, key=attrgetter("rank")))


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted([*path.glob("*.json"), *path.glob("*.json.gz")])
        if not inside:
            raise UserError(f"no .json or .json.gz in {path}", NEXT_STEP)
        yield from inside


def _read(path: Path, number: int) -> Recording:
    stream, columns = Stream(path), _Columns()
    collecting = gc.isenabled()
    gc.disable()  # a million objects without one cycle among them
    try:
        with contextlib.closing(stream.events()) as pieces:
            for events in pieces:
                columns.add(events)
    finally:
        if collecting:
            gc.enable()
    return columns.recording(stream, number)


class _Index(dict[Any, int]):
    """Numbers things in the order of their first appearance."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Numbers(dict[int | str, int]):
    """Small numbers, perhaps written as text."""

    def __missing__(self, key: int | str) -> int:
        self[key] = number = _whole(key, 2**31 - 1)
        return number


class _Columns:
    """Columns that grow by one part for each piece of the file."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Column]] = []
        self.names, self.threads, self.categories = _Index(), _Index(), _Index()
        self.texts = {name: _Index() for name in ("shapes", "dtypes", "concrete")}
        self.instants: list[tuple[float, int, bool]] = []
        self.seen = 0

    def add(self, events: list[Any]) -> None:
        """Account for these events."""
        self.seen += len(events)
        if not decoding.INSTANTS.isdisjoint(map(type, events)):
            self._instants(events)
        rows = [event for event in events if type(event) in decoding.COMPLETE]
        if rows:
            self.parts.append(self._part(rows))

    def _instants(self, events: list[Any]) -> None:
        for event in events:
            if type(event) in decoding.INSTANTS and event.name == "[memory]" and event.args:
                on_device = event.args.device_type > 0
                self.instants.append((event.ts, event.args.total, on_device))

    def _part(self, rows: list[Any]) -> dict[str, Column]:
        """The columns of these rows."""
        count = len(rows)
        part = {name: np.full(count, -1, dtype) for name, dtype in COLUMNS.items()}
        part["ts"] = np.fromiter(map(attrgetter("ts"), rows), np.float64, count)
        part["dur"] = np.fromiter(map(attrgetter("dur"), rows), np.float64, count)
        names = map(attrgetter("name"), rows)
        part["name"] = np.fromiter(map(self.names.__getitem__, names), np.int32, count)
        threads = map(self.threads.__getitem__, map(attrgetter("pid", "tid"), rows))
        part["thread"] = np.fromiter(threads, np.int32, count)
        cats = map(self.categories.__getitem__, map(attrgetter("cat"), rows))
        part["category"] = self._category(np.fromiter(cats, np.int64, count))
        self._arguments(part, rows)
        return part

    def _category(self, numbers: Column) -> Column:
        known = np.array([_category(cat) for cat in self.categories], np.int8)
        found: Column = known[numbers]
        return found

    def _arguments(self, part: dict[str, Column], rows: list[Any]) -> None:
        """Fill the columns that come from arguments."""
        category, every = part["category"], list(map(attrgetter("args"), rows))
        having = np.ones(len(rows), np.bool_)
        if None in every:
            having = np.fromiter((args is not None for args in every), np.bool_, len(rows))
        wanted = {
            Category.OPERATOR: self._operators,
            Category.ANNOTATION: self._operators,
            Category.RUNTIME: self._runtime,
        }
        for kind in np.flatnonzero(np.bincount(category)).tolist():
            at = np.flatnonzero(having & (category == kind))
            args = [every[row] for row in at.tolist()]
            if args and kind != Category.PYTHON:
                wanted.get(Category(kind), self._device)(part, at, args)

    def _operators(self, part: dict[str, Column], at: Column, args: list[Any]) -> None:
        _fill(part, at, args, "external", "sequence", "forward_thread")
        _old_external(part, at, args)
        for name, index in self.texts.items():
            raw = list(map(attrgetter(name), args))
            if raw.count(raw[0]) == len(raw) and not bytes(raw[0]):
                continue  # not recorded
            numbers = map(index.__getitem__, map(bytes, raw))
            part[name][at] = np.fromiter(numbers, np.int32, len(args))

        sent = list(map(attrgetter("elements"), args))
        if sent.count(-1) < len(sent):  # communication between ranks tells how much
            part["moved"][at] = [
                count * _width(arguments.element_type) if count >= 0 else -1
                for count, arguments in zip(sent, args, strict=True)
            ]

    def _runtime(self, part: dict[str, Column], at: Column, args: list[Any]) -> None:
        _fill(part, at, args, "external", "correlation")
        _old_external(part, at, args)
        # HIP says here, as text, what it copies, and nothing with the copy itself.
        sizes = list(map(attrgetter("size"), args))
        if sizes.count(-1) < len(sizes):
            part["moved"][at] = [_whole(size) for size in sizes]

    def _device(self, part: dict[str, Column], at: Column, args: list[Any]) -> None:
        _fill(part, at, args, "external", "correlation", "moved", "occupancy")
        _old_external(part, at, args)
        known = _Numbers()
        for name in ("device", "stream"):
            values = map(attrgetter(name), args)
            part[name][at] = [known[value] for value in values]

    def recording(self, stream: Stream, number: int) -> Recording:
        """Everything put together. Raises UserError when there are no events."""
        joined = {
            name: np.concatenate([part[name] for part in self.parts])
            for name in (*COLUMNS, "ts", "dur")
            if self.parts
        }
        kept = _sensible(joined) if joined else np.empty(0, np.int64)
        if not len(kept):
            raise UserError(f"{stream.path} holds no events that last", NEXT_STEP)
        first, lasting = joined.pop("ts")[kept], joined.pop("dur")[kept]
        base = float(np.floor(first.min()))
        begin, end = _times(first, lasting, base)
        order = np.lexsort((-end, begin))
        texts = {name: self._texts(name, joined) for name in self.texts}
        columns = {name: column[kept[order]] for name, column in joined.items()}
        return Recording(
            path=str(stream.path),
            rank=_rank(stream, number),
            names=tuple(self.names),
            threads=tuple(self.threads),
            events=Events(begin=begin[order], end=end[order], **columns),
            memory=_memory(self.instants, base),
            metadata=stream.metadata,
            seen=self.seen,
            truncated=stream.truncated,
            **texts,
        )

    def _texts(self, name: str, joined: dict[str, Column]) -> tuple[str, ...]:
        """The distinct texts of a column, as they are shown; renumbers the column."""
        if not self.texts[name]:
            return ()
        shown, column = _Index(), joined[name]
        write = _shown if name != "concrete" else _canonical
        numbers = np.array([shown[write(raw)] for raw in self.texts[name]], np.int32)
        joined[name] = np.where(column >= 0, numbers[column], -1).astype(np.int32)
        if "" in shown:  # an operator without this argument
            joined[name][joined[name] == shown[""]] = -1
        return tuple(shown)


def _width(raw: Any) -> int:
    """Bytes of one element of a message."""
    return widths.width(bytes(raw).decode("ascii", "replace").strip('"')) or widths.USUAL


def _fill(part: dict[str, Column], at: Column, args: list[Any], *names: str) -> None:
    for name in names:
        part[name][at] = np.fromiter(map(attrgetter(name), args), part[name].dtype, len(args))


def _old_external(part: dict[str, Column], at: Column, args: list[Any]) -> None:
    """PyTorch 1.x wrote the name in small letters."""
    missing = np.flatnonzero(part["external"][at] == -1)
    if len(missing):
        old = (args[row].external_old for row in missing.tolist())
        part["external"][at[missing]] = np.fromiter(old, np.int64, len(missing))


def _category(cat: str) -> int:
    """Kernels of devices that nobody here knows are told by their name."""
    lower = cat.lower()
    if lower in CATEGORIES:
        return CATEGORIES[lower]
    if lower.endswith(("runtime", "driver")):
        return Category.RUNTIME
    return Category.OTHER


def _whole(value: int | str, largest: int = 2**63 - 1) -> int:
    """A number, perhaps written as text, in tens or with 0x."""
    try:
        number = value if isinstance(value, int) else int(value, 0)
    except ValueError:
        return -1
    return number if -1 <= number <= largest else -1


def _sensible(joined: dict[str, Column]) -> Column:
    """Rows with a time near the others'."""
    begin, dur = joined["ts"], joined["dur"]
    finite = np.isfinite(begin) & np.isfinite(dur) & (dur >= 0) & (dur < LONGEST_US)
    if not finite.any():
        return np.empty(0, np.int64)
    middle = float(np.median(begin[finite]))
    return np.flatnonzero(finite & (np.abs(begin - middle) < LONGEST_US))


def _times(begin: Column, dur: Column, base: float) -> tuple[Column, Column]:
    """Whole nanoseconds from `base` (us)."""
    first = np.rint((begin - base) * 1e3).astype(np.int64)
    last = first + np.rint(dur * 1e3).astype(np.int64)
    return first, last


def _shown(raw: bytes) -> str:
    """[[32, 64], [], [[2], [3]]] as "32x64, , 2, 3"; ["float", ""] as "float, "."""
    if not raw:
        return ""
    return ", ".join(_one(item) for item in _parsed(raw))


def _one(item: Any) -> str:
    if isinstance(item, list):
        if any(isinstance(inner, list) for inner in item):
            return ", ".join(_one(inner) for inner in item)
        return "x".join(str(inner) for inner in item)
    return str(item)


def _canonical(raw: bytes) -> str:
    return json.dumps(_parsed(raw)) if raw else ""


def _parsed(raw: bytes) -> list[Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _memory(instants: Iterable[tuple[float, int, bool]], base: float) -> Memory:
    near = [one for one in instants if abs(one[0] - base) < LONGEST_US]
    near.sort(key=lambda one: one[0])
    return Memory(
        at=np.array([round((ts - base) * 1e3) for ts, _, _ in near], np.int64),
        total=np.array([total for _, total, _ in near], np.int64),
        accelerator=np.array([flag for _, _, flag in near], np.bool_),
    )


def _rank(stream: Stream, number: int) -> int:
    """As the trace says, else as its name does, else its place in the list."""
    about = stream.metadata.get("distributedInfo")
    rank = about.get("rank") if isinstance(about, dict) else None
    if isinstance(rank, int):
        return rank
    named = RANK.search(stream.path.name)
    return int(named.group(1)) if named else number
