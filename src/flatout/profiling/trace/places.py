"""Which line of the user's code each event of the host comes from."""

from __future__ import annotations

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
from flatout.profiling.trace.recording import Category, Flags, Ints, Recording
from flatout.profiling.trace.sites import FOREIGN, sites, text

PACKAGES = ("site-packages", "dist-packages", "lib/python", "Lib\\", "/torch/", "<")


@dataclass(frozen=True)
class Places:
    """For each row of the recording."""

    where: Ints
    """Index into `known`; NOBODY: not known, or in no line of the user's."""
    known: tuple[Place, ...] = ()
    backward: Flags = field(default_factory=lambda: np.empty(0, np.bool_))
    """In a backward pass; `where` is then the forward's line."""

    def of(self, row: int) -> Place | None:
        """The place of this row."""
        number = int(self.where[row]) if row >= 0 else NOBODY
        return self.known[number] if number >= 0 else None


def places(recording: Recording, host: Host, roots: Sequence[Path]) -> Places:
    """The places that the recording's own stacks tell."""
    where, known = _from_stacks(recording, roots)
    backward, forward = directions(recording, host)
    found = np.where(forward >= 0, where[forward], NOBODY)
    return Places(np.where(backward, found, where), known, backward)


def _from_stacks(recording: Recording, roots: Sequence[Path]) -> tuple[Ints, tuple[Place, ...]]:
    """For each row the line of the innermost frame of the user's that it is inside of."""
    where = np.full(len(recording.events), NOBODY, np.int64)
    if not (recording.events.category == Category.PYTHON).any():
        return where, ()
    frames = _Frames(recording, roots)
    rows = recording.rows(Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME, Category.PYTHON)
    for _, mine in by_thread(recording, rows):
        frame, callee, parent = _frames(recording, mine, frames.own)
        inside = (frame >= 0) & _telling(recording, mine, callee)
        frames.wrapped = _wrapped(recording, mine[callee == parent], parent[callee == parent])
        where[mine[inside]] = frames.numbers(frame[inside], callee[inside])
    return where, tuple(frames.known)


def _telling(recording: Recording, rows: Ints, callee: Ints) -> Flags:
    """Rows to find a line for: what is no frame, and calls that led to something of that."""
    events = recording.events
    other = events.category[rows] != Category.PYTHON
    begins = events.begin[rows[other]]
    low = np.searchsorted(begins, events.begin[rows])
    leading = np.searchsorted(begins, events.end[rows]) > low
    found: Flags = other | (leading & (callee == rows))
    return found


def _wrapped(recording: Recording, rows: Ints, parent: Ints) -> dict[int, frozenset[str]]:
    """For each call of the user's functions the names of the functions called by it in turn."""
    names, found = recording.names, dict[int, frozenset[str]]()
    for row, by in zip(recording.events.name[rows].tolist(), parent.tolist(), strict=True):
        if by >= 0 and not names[row].startswith(lines.MODULE):
            found[by] = found.get(by, frozenset()) | lines.called(names[row]).names
    return found


def _frames(recording: Recording, rows: Ints, own: Flags) -> tuple[Ints, Ints, Ints]:
    """For each of a thread's rows: the user's frame around it, what that one called, its parent."""
    events = recording.events
    found = nest(events.begin[rows], events.end[rows])
    user = own[events.name[rows]] & (events.category[rows] == Category.PYTHON)
    silent = events.category[rows] == Category.ANNOTATION
    frame, callee = np.full(len(rows), NOBODY, np.int64), np.full(len(rows), NOBODY, np.int64)
    for level in found.levels()[1:]:
        parent = found.parent[level]
        directly = user[parent]
        # What an annotation holds was called by who is around the annotation.
        through = silent[parent] & (callee[parent] == parent)
        frame[level] = np.where(directly, parent, frame[parent])
        callee[level] = np.where(directly | through, level, callee[parent])
    inside = frame >= 0
    return (
        np.where(inside, rows[np.maximum(frame, 0)], NOBODY),
        np.where(inside, rows[np.maximum(callee, 0)], NOBODY),
        np.where(found.parent >= 0, rows[found.parent], NOBODY),
    )


def short(path: Path, root: Path) -> str:
    """From `root` where it lies below it, else the whole path."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


class _Frames:
    """Frames of the user's functions, and the lines in them."""

    def __init__(self, recording: Recording, roots: Sequence[Path]) -> None:
        self.recording = recording
        self.roots = [root.resolve() for root in roots]
        self.files: dict[str, Path | None] = {}
        self.own = recording.named(self._is_own)
        self.known: list[Place] = []
        self.index: dict[tuple[str, int, str], int] = {}
        self.wrapped: dict[int, frozenset[str]] = {}
        self.lines: dict[object, list[int]] = {}

    def _is_own(self, name: str) -> bool:
        """A frame in a file of the user's."""
        found = lines.FRAME.match(name)
        if not found:
            return False
        file = found.group("file")
        if file not in self.files:
            self.files[file] = self._path(file)
        return self.files[file] is not None

    def _path(self, file: str) -> Path | None:
        """The file itself; None: it is not the user's."""
        if any(part in file for part in PACKAGES):
            return None
        first = file.replace("\\", "/").split("/")[0].removesuffix(".py")
        if not self.roots:
            known = first in FOREIGN or first in sys.stdlib_module_names
            return None if known else Path(file)
        if first in FOREIGN:
            return None
        for root in self.roots:
            # A name may count from a folder above the root: where Python was started.
            for folder in (root, *root.parents):
                path = folder / file
                if path.is_relative_to(root) and path.is_file():
                    return None if ".venv" in path.relative_to(root).parts else path
        return None

    def numbers(self, frame: Ints, callee: Ints) -> Ints:
        """The place of each row, from its frame and what was called there."""
        pairs, names = grouped(frame, callee), self.recording.events.name
        frames, callees = pairs.keys
        found = np.full(len(pairs), NOBODY, np.int64)
        cuts = np.flatnonzero(np.diff(frames)) + 1
        for one in np.split(np.arange(len(pairs)), cuts):
            if len(one):
                rows = callees[one].tolist()
                inside = tuple(self.wrapped.get(row, frozenset()) for row in rows)
                calls = tuple(names[callees[one]].tolist())
                found[one] = self._function(int(names[frames[one[0]]]), calls, inside)
        return found[pairs.group]

    def _function(
        self, frame: int, calls: tuple[int, ...], inside: tuple[frozenset[str], ...]
    ) -> list[int]:
        """The places of these calls of one function. `inside`: what each called in turn."""
        key = (frame, calls, inside)
        if key not in self.lines:
            matched = lines.FRAME.match(self.recording.names[frame])
            assert matched is not None
            file, function = matched.group("file"), matched.group("function")
            line, path = int(matched.group("line")), self.files[file]
            found = sites(path, function, line) if path and self.roots else ()
            names = [self.recording.names[call] for call in calls]
            exact = lines.resolve(found, names, inside)
            self.lines[key] = [self._place(file, at or line, function) for at in exact]
        return self.lines[key]

    def _place(self, file: str, line: int, function: str) -> int:
        """The number of this place."""
        key = (file, line, function)
        if key not in self.index:
            path = self.files[file]
            shown, source = file, ""
            if path and self.roots:
                source = text(path, line)
                shown = short(path, self.roots[0])
            self.index[key] = len(self.known)
            self.known.append(Place(shown, line, function, source))
        return self.index[key]


def directions(recording: Recording, host: Host) -> tuple[Flags, Ints]:
    """For each row: whether it is in a backward pass, and the forward's row of that."""
    events = recording.events
    count = len(events)
    forward = np.full(count, NOBODY, np.int64)
    operators = recording.rows(Category.OPERATOR)
    having = operators[events.sequence[operators] >= 0]
    ahead = having[events.forward_thread[having] <= 0]
    behind = having[events.forward_thread[having] > 0]
    if len(ahead) and len(behind):
        # The last operator that began with a number is the one whose backward has it.
        order = np.lexsort((ahead, events.sequence[ahead]))
        keys = events.sequence[ahead][order]
        at = np.searchsorted(keys, events.sequence[behind], side="right") - 1
        fits = (at >= 0) & (keys[at] == events.sequence[behind])
        forward[behind] = np.where(fits, ahead[order][at], NOBODY)
    backward = np.zeros(count, np.bool_)
    backward[behind] = True
    for rows, found in host.nests.values():
        for level in found.levels()[1:]:
            mine, parent = rows[level], rows[found.parent[level]]
            inherited = backward[parent] & ~backward[mine]
            backward[mine] |= inherited
            forward[mine] = np.where(inherited, forward[parent], forward[mine])
    return backward, forward
