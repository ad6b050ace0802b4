"""Read Kineto traces into columns."""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.nouns.errors import UserError
from flatout.profiling.trace import widths
from flatout.profiling.trace.decoding import Complete, Instant
from flatout.profiling.trace.recording import Allocations, Category, Events, TraceRecording
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
"""The times of events further than this from the others are not plausible."""
COLUMNS = {
    "name": np.int32,
    "category": np.int8,
    "thread": np.int32,
    "external": np.int64,
    "correlation": np.int64,
    "device": np.int32,
    "stream": np.int32,
    "moved": np.int64,
    "members": np.int32,
    "occupancy": np.float32,
    "shapes": np.int32,
    "dtypes": np.int32,
    "concrete": np.int32,
    "sequence": np.int64,
    "forward_thread": np.int64,
}
Column = NDArray[Any]


def read(paths: Sequence[Path]) -> tuple[TraceRecording, ...]:
    """Read traces, in order of their ranks; a folder stands for the traces in it.

    Raises UserError for a file that cannot be read, is not a trace or has no events.
    """
    recordings = [_read(path, number) for number, path in enumerate(_files(paths))]
    return tuple(sorted(recordings, key=attrgetter("rank")))


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        traces = sorted([*path.glob("*.json"), *path.glob("*.json.gz")])
        if not traces:
            raise UserError(f"no .json or .json.gz in {path}", NEXT_STEP)
        yield from traces


def _read(path: Path, number: int) -> TraceRecording:
    stream, columns = Stream(path), _Columns()
    gc_was_enabled = gc.isenabled()
    gc.disable()  # a million objects, and not one reference cycle
    try:
        with contextlib.closing(stream.events()) as pieces:
            for events in pieces:
                columns.add(events)
    finally:
        if gc_was_enabled:
            gc.enable()
    return columns.recording(stream, number)


class _Index(dict[Any, int]):
    """Numbers its keys in order of first appearance."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Numbers(dict[int | str, int]):
    """Small numbers, even if written as text."""

    def __missing__(self, key: int | str) -> int:
        self[key] = number = _whole(key, 2**31 - 1)
        return number


class _Columns:
    """Columns that grow by one part per piece of the file."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Column]] = []
        self.names, self.threads, self.categories = _Index(), _Index(), _Index()
        self.texts = {name: _Index() for name in ("shapes", "dtypes", "concrete")}
        self.instants: list[tuple[float, int, bool]] = []
        self.event_count = 0

    def add(self, events: list[Any]) -> None:
        """Add these events."""
        self.event_count += len(events)
        if Instant in map(type, events):
            for event in events:
                if type(event) is Instant and event.name == "[memory]" and event.args:
                    on_device = event.args.device_type > 0
                    self.instants.append((event.ts, event.args.total, on_device))
        rows = [event for event in events if type(event) is Complete]
        if rows:
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
            # Fill the columns that come from arguments.
            category, all_args = part["category"], list(map(attrgetter("args"), rows))
            has_args = np.ones(len(rows), np.bool_)
            if None in all_args:
                has_args = np.fromiter((args is not None for args in all_args), np.bool_, len(rows))
            readers = {
                Category.OPERATOR: self._operators,
                Category.ANNOTATION: self._operators,
                Category.RUNTIME: self._runtime,
            }
            for kind in np.flatnonzero(np.bincount(category)).tolist():
                kind_rows = np.flatnonzero(has_args & (category == kind))
                args = [all_args[row] for row in kind_rows.tolist()]
                if args and kind != Category.PYTHON:
                    readers.get(Category(kind), self._device)(part, kind_rows, args)
            self.parts.append(part)

    def _category(self, numbers: Column) -> Column:
        by_number = np.array([_category(cat) for cat in self.categories], np.int8)
        categories: Column = by_number[numbers]
        return categories

    def _operators(self, part: dict[str, Column], at: Column, args: list[Any]) -> None:
        _fill(part, at, args, "external", "sequence", "forward_thread")
        for name, index in self.texts.items():
            raw = list(map(attrgetter(name), args))
            if raw.count(raw[0]) == len(raw) and not bytes(raw[0]):
                continue  # not recorded
            numbers = map(index.__getitem__, map(bytes, raw))
            part[name][at] = np.fromiter(numbers, np.int32, len(args))

        element_counts = list(map(attrgetter("elements"), args))
        if element_counts.count(-1) < len(
            element_counts
        ):  # communication between ranks says how much
            part["moved"][at] = [
                count * _width(arguments.element_type) if count >= 0 else -1
                for count, arguments in zip(element_counts, args, strict=True)
            ]
            members = (_whole(arguments.members, 2**31 - 1) for arguments in args)
            part["members"][at] = np.fromiter(members, np.int32, len(args))

    def _runtime(self, part: dict[str, Column], at: Column, args: list[Any]) -> None:
        _fill(part, at, args, "external", "correlation")
        # HIP gives a copy's size here, as text, and not with the copy itself.
        sizes = list(map(attrgetter("size"), args))
        if sizes.count(-1) < len(sizes):
            part["moved"][at] = [_whole(size) for size in sizes]

    def _device(self, part: dict[str, Column], at: Column, args: list[Any]) -> None:
        _fill(part, at, args, "external", "correlation", "moved", "occupancy")
        whole_numbers = _Numbers()
        for name in ("device", "stream"):
            values = map(attrgetter(name), args)
            part[name][at] = [whole_numbers[value] for value in values]

    def recording(self, stream: Stream, number: int) -> TraceRecording:
        """The whole recording. Raises UserError if there are no events."""
        joined = {
            name: np.concatenate([part[name] for part in self.parts])
            for name in (*COLUMNS, "ts", "dur")
            if self.parts
        }
        row_numbers = _plausible_rows(joined) if joined else np.empty(0, np.int64)
        if not len(row_numbers):
            raise UserError(f"{stream.path} has no events with a duration", NEXT_STEP)
        begins, durations = joined.pop("ts")[row_numbers], joined.pop("dur")[row_numbers]
        base = float(np.floor(begins.min()))
        begin = np.rint((begins - base) * 1e3).astype(np.int64)  # ns
        end = begin + np.rint(durations * 1e3).astype(np.int64)
        order = np.lexsort((-end, begin))
        texts = {name: self._texts(name, joined) for name in self.texts}
        columns = {name: column[row_numbers[order]] for name, column in joined.items()}
        plausible = [instant for instant in self.instants if abs(instant[0] - base) < LONGEST_US]
        plausible.sort(key=lambda instant: instant[0])
        return TraceRecording(
            path=str(stream.path),
            rank=_rank(stream, number),
            names=tuple(self.names),
            threads=tuple(self.threads),
            events=Events(begin=begin[order], end=end[order], **columns),
            memory=Allocations(
                at=np.array([round((ts - base) * 1e3) for ts, _, _ in plausible], np.int64),
                total=np.array([total for _, total, _ in plausible], np.int64),
                accelerator=np.array([flag for _, _, flag in plausible], np.bool_),
            ),
            metadata=stream.metadata,
            event_count=self.event_count,
            truncated=stream.truncated,
            **texts,
        )

    def _texts(self, name: str, joined: dict[str, Column]) -> tuple[str, ...]:
        """The distinct texts of a column, as displayed; renumbers the column."""
        if not self.texts[name]:
            return ()
        distinct, column = _Index(), joined[name]
        formatter = _shapes_text if name != "concrete" else _canonical
        numbers = np.array([distinct[formatter(raw)] for raw in self.texts[name]], np.int32)
        joined[name] = np.where(column >= 0, numbers[column], -1).astype(np.int32)
        if "" in distinct:  # an operator without this argument
            joined[name][joined[name] == distinct[""]] = -1
        return tuple(distinct)


def _width(raw: Any) -> int:
    """Bytes of one element of a message."""
    return widths.width(bytes(raw).decode("ascii", "replace").strip('"')) or widths.USUAL


def _fill(part: dict[str, Column], at: Column, args: list[Any], *names: str) -> None:
    for name in names:
        part[name][at] = np.fromiter(map(attrgetter(name), args), part[name].dtype, len(args))


def _category(cat: str) -> int:
    """The category of a name; runtime calls of unknown devices are recognised by its ending."""
    lower = cat.lower()
    if lower in CATEGORIES:
        return CATEGORIES[lower]
    if lower.endswith(("runtime", "driver")):
        return Category.RUNTIME
    return Category.OTHER


def _whole(value: int | str, largest: int = 2**63 - 1) -> int:
    """A number, also as text in decimal or with 0x."""
    try:
        number = value if isinstance(value, int) else int(value, 0)
    except ValueError:
        return -1
    return number if -1 <= number <= largest else -1


def _plausible_rows(joined: dict[str, Column]) -> Column:
    """Rows with a time near those of the others."""
    begin, dur = joined["ts"], joined["dur"]
    finite = np.isfinite(begin) & np.isfinite(dur) & (dur >= 0) & (dur < LONGEST_US)
    if not finite.any():
        return np.empty(0, np.int64)
    median = float(np.median(begin[finite]))
    return np.flatnonzero(finite & (np.abs(begin - median) < LONGEST_US))


def _shapes_text(raw: bytes) -> str:
    """[[32, 64], [], [[2], [3]]] as "32x64, , 2, 3"; ["float", ""] as "float, "."""
    if not raw:
        return ""
    return ", ".join(_shape_text(element) for element in _parsed(raw))


def _shape_text(element: Any) -> str:
    if isinstance(element, list):
        if any(isinstance(part, list) for part in element):
            return ", ".join(_shape_text(part) for part in element)
        return "x".join(str(part) for part in element)
    return str(element)


def _canonical(raw: bytes) -> str:
    return json.dumps(_parsed(raw)) if raw else ""


def _parsed(raw: bytes) -> list[Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _rank(stream: Stream, number: int) -> int:
    """The rank from the trace, else from its file name, else its position in the list."""
    distributed = stream.metadata.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    if isinstance(rank, int):
        return rank
    match = RANK.search(stream.path.name)
    return int(match.group(1)) if match else number
