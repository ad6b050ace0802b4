"""Which line of the user's code each event of the host comes from."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flatout.nouns.profile import Place
from flatout.profiling.trace import lines
from flatout.profiling.trace.groups import grouped
from flatout.profiling.trace.host import Host, by_thread
from flatout.profiling.trace.intervals import NOBODY, nest
from flatout.profiling.trace.recording import Category, Flags, Ints, TraceRecording
from flatout.profiling.trace.sites import FOREIGN, sites, text

PACKAGES = ("site-packages", "dist-packages", "lib/python", "Lib\\", "/torch/", "<")


@dataclass(frozen=True)
class Places:
    """The place of each row of the recording."""

    where: Ints
    """Index into `entries`; NOBODY if unknown or in no line of the user's."""
    entries: tuple[Place, ...] = ()
    backward: Flags = field(default_factory=lambda: np.empty(0, np.bool_))
    """Whether it is in a backward pass; `where` is then the forward's line."""

    def of(self, row: int) -> Place | None:
        """The place of this row."""
        number = int(self.where[row]) if row >= 0 else NOBODY
        return self.entries[number] if number >= 0 else None


def places(recording: TraceRecording, host: Host, roots: Sequence[Path]) -> Places:
    """The places from the recording's own stacks."""
    where, entries = _from_stacks(recording, roots)
    backward, forward = directions(recording, host)
    forward_places = np.where(forward >= 0, where[forward], NOBODY)
    return Places(np.where(backward, forward_places, where), entries, backward)


def _from_stacks(
    recording: TraceRecording, roots: Sequence[Path]
) -> tuple[Ints, tuple[Place, ...]]:
    """For each row the line in the innermost enclosing frame of the user's."""
    where = np.full(len(recording.events), NOBODY, np.int64)
    if not (recording.events.category == Category.PYTHON).any():
        return where, ()
    frames = _Frames(recording, roots)
    rows = recording.rows(Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME, Category.PYTHON)
    for _, thread_rows in by_thread(recording, rows):
        frame, callee, parent = _frames(recording, thread_rows, frames.own)
        # Rows that need a line: those that are not frames, and calls that led to such rows.
        events = recording.events
        is_no_frame = events.category[thread_rows] != Category.PYTHON
        begins = events.begin[thread_rows[is_no_frame]]
        low = np.searchsorted(begins, events.begin[thread_rows])
        has_inner = np.searchsorted(begins, events.end[thread_rows]) > low
        needs_line = (frame >= 0) & (is_no_frame | (has_inner & (callee == thread_rows)))
        # For each call by the user's functions, the functions that it called in turn.
        calls = thread_rows[callee == parent]
        callers = parent[callee == parent]
        names, callee_names = recording.names, dict[int, frozenset[str]]()
        for row, caller in zip(
            recording.events.name[calls].tolist(), callers.tolist(), strict=True
        ):
            if caller >= 0 and not names[row].startswith(lines.MODULE):
                callee_names[caller] = (
                    callee_names.get(caller, frozenset()) | lines.called(names[row]).names
                )
        frames.callees = callee_names
        where[thread_rows[needs_line]] = frames.numbers(frame[needs_line], callee[needs_line])
    return where, tuple(frames.entries)


def _frames(recording: TraceRecording, rows: Ints, own: Flags) -> tuple[Ints, Ints, Ints]:
    """For each row of a thread: the user's frame around it, what that frame called, its parent."""
    events = recording.events
    nested = nest(events.begin[rows], events.end[rows])
    user = own[events.name[rows]] & (events.category[rows] == Category.PYTHON)
    is_annotation = events.category[rows] == Category.ANNOTATION
    frame, callee = np.full(len(rows), NOBODY, np.int64), np.full(len(rows), NOBODY, np.int64)
    for level in nested.levels()[1:]:
        parent = nested.parent[level]
        is_call = user[parent]
        # What is inside an annotation was called by the frame around the annotation.
        is_annotated_call = is_annotation[parent] & (callee[parent] == parent)
        frame[level] = np.where(is_call, parent, frame[parent])
        callee[level] = np.where(is_call | is_annotated_call, level, callee[parent])
    has_frame = frame >= 0
    return (
        np.where(has_frame, rows[np.maximum(frame, 0)], NOBODY),
        np.where(has_frame, rows[np.maximum(callee, 0)], NOBODY),
        np.where(nested.parent >= 0, rows[nested.parent], NOBODY),
    )


def short(path: Path, root: Path) -> str:
    """The path relative to `root` if it is below it, else the whole path."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def short_paths(text: str, root: Path) -> str:
    """The text with paths below `root` relative to it.

    In a guard, torch leaves out what a path has in common with its own folder, and one letter more.
    """
    folder = f"{root.as_posix()}/"
    ends = [folder[begin:] for begin in range(len(folder) - 1)]

    def short(match: re.Match[str]) -> str:
        cut = next((end for end in ends if match[0].startswith(end)), "")
        return match[0].removeprefix(cut)

    return re.sub(r"(?<=# )[^\s:]+\.py(?=:)", short, text.replace(folder, ""))


class _Frames:
    """Frames of the user's functions, and their lines."""

    def __init__(self, recording: TraceRecording, roots: Sequence[Path]) -> None:
        self.recording = recording
        self.roots = [root.resolve() for root in roots]
        self.files: dict[str, Path | None] = {}
        self.own = recording.named(self._is_own)
        self.entries: list[Place] = []
        self.index: dict[tuple[str, int, str], int] = {}
        self.callees: dict[int, frozenset[str]] = {}
        self.lines: dict[object, list[int]] = {}

    def _is_own(self, name: str) -> bool:
        """Whether it is a frame in a file of the user's."""
        match = lines.FRAME.match(name)
        if not match:
            return False
        file = match.group("file")
        if file not in self.files:
            self.files[file] = self._path(file)
        return self.files[file] is not None

    def _path(self, file: str) -> Path | None:
        """The file, or None if it is not the user's."""
        if any(part in file for part in PACKAGES):
            return None
        first = file.replace("\\", "/").split("/")[0].removesuffix(".py")
        if not self.roots:
            is_foreign = first in FOREIGN or first in sys.stdlib_module_names
            return None if is_foreign else Path(file)
        if first in FOREIGN:
            return None
        for root in self.roots:
            # A name may be relative to a folder above the root, where Python was started.
            for folder in (root, *root.parents):
                path = folder / file
                if path.is_relative_to(root) and path.is_file():
                    return None if ".venv" in path.relative_to(root).parts else path
        return None

    def numbers(self, frame: Ints, callee: Ints) -> Ints:
        """The place of each row, from its frame and its callee."""
        pairs, names = grouped(frame, callee), self.recording.events.name
        frames, callees = pairs.keys
        place_numbers = np.full(len(pairs), NOBODY, np.int64)
        cuts = np.flatnonzero(np.diff(frames)) + 1
        for group in np.split(np.arange(len(pairs)), cuts):
            if len(group):
                rows = callees[group].tolist()
                inner_names = tuple(self.callees.get(row, frozenset()) for row in rows)
                calls = tuple(names[callees[group]].tolist())
                place_numbers[group] = self._function(
                    int(names[frames[group[0]]]), calls, inner_names
                )
        return place_numbers[pairs.group]

    def _function(
        self, frame: int, calls: tuple[int, ...], callees: tuple[frozenset[str], ...]
    ) -> list[int]:
        """The places of these calls in one function. `callees`: what each called in turn."""
        key = (frame, calls, callees)
        if key not in self.lines:
            match = lines.FRAME.match(self.recording.names[frame])
            assert match is not None
            file, function = match.group("file"), match.group("function")
            line, path = int(match.group("line")), self.files[file]
            function_sites = sites(path, function, line) if path and self.roots else ()
            names = [self.recording.names[call] for call in calls]
            line_numbers = lines.resolve(function_sites, names, callees)
            self.lines[key] = [
                self._place(file, exact_line or line, function) for exact_line in line_numbers
            ]
        return self.lines[key]

    def _place(self, file: str, line: int, function: str) -> int:
        """The number of this place."""
        key = (file, line, function)
        if key not in self.index:
            path = self.files[file]
            display, source = file, ""
            if path and self.roots:
                source = text(path, line)
                display = short(path, self.roots[0])
            self.index[key] = len(self.entries)
            self.entries.append(Place(display, line, function, source))
        return self.index[key]


def directions(recording: TraceRecording, host: Host) -> tuple[Flags, Ints]:
    """For each row: whether it is in a backward pass, and the row of its forward operator."""
    events = recording.events
    count = len(events)
    forward = np.full(count, NOBODY, np.int64)
    operators = recording.rows(Category.OPERATOR)
    numbered = operators[events.sequence[operators] >= 0]
    forward_rows = numbered[events.forward_thread[numbered] <= 0]
    backward_rows = numbered[events.forward_thread[numbered] > 0]
    if len(forward_rows) and len(backward_rows):
        # The last operator that began with a number is the one whose backward carries it.
        order = np.lexsort((forward_rows, events.sequence[forward_rows]))
        keys = events.sequence[forward_rows][order]
        at = np.searchsorted(keys, events.sequence[backward_rows], side="right") - 1
        is_match = (at >= 0) & (keys[at] == events.sequence[backward_rows])
        forward[backward_rows] = np.where(is_match, forward_rows[order][at], NOBODY)
    backward = np.zeros(count, np.bool_)
    backward[backward_rows] = True
    for rows, nested in host.nests.values():
        for level in nested.levels()[1:]:
            level_rows, parent = rows[level], rows[nested.parent[level]]
            inherited = backward[parent] & ~backward[level_rows]
            backward[level_rows] |= inherited
            forward[level_rows] = np.where(inherited, forward[parent], forward[level_rows])
    return backward, forward
