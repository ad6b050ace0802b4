"""The overlay's contents: one entry for each path that differs from the user's own files.

Only the index says what is where; the folders of a layer are storage. Each change is also a line in
the layer's journal, so that the other processes of the program (ranks, spawned loader workers) see
it: a shared counter per journal tells them, at the cost of a comparison, that there is more to
read.
"""
# ruff: noqa: PTH118, PTH120

from __future__ import annotations

import contextlib
import enum
import json
import mmap
import os
import threading
from collections.abc import Iterator
from typing import NamedTuple

from flatout_agent.overlay.native import lengthened, make_folders, plain, raw_io, system

fold = os.path.normcase
"""A path for comparison: Windows does not distinguish upper and lower case."""

JOURNAL = "journal"
STATE = "state"
READ = "read"
"""Kind of a journal line that is not an entry: something in this folder was read back."""


class Layer(enum.IntEnum):
    """Where an entry's contents are."""

    REAL = 0  # a user's file under another name (it was renamed)
    GIVEN = 1  # what the baseline prepared: read only
    PREPARED = 2  # written by this program before its first step
    AFTER = 3  # written after it


class EntryKind(str, enum.Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    GONE = "gone"  # the user's file exists, but the program has removed it
    FORGOTTEN = "forgotten"  # no entry any more: neither here nor among the user's files


class OverlayEntry(NamedTuple):
    path: str
    kind: EntryKind
    where: str
    """Its contents; for GONE the fingerprint of the user's file when it was removed."""
    layer: Layer


class Index:
    """Entries by path, and by folder for listings."""

    def __init__(self) -> None:
        self.entries: dict[str, OverlayEntry] = {}
        self.children: dict[str, dict[str, str]] = {}

    def put(self, entry: OverlayEntry) -> None:
        """Set the entry of a path; Kind.FORGOTTEN takes it out."""
        key = fold(entry.path)
        folder, name = os.path.split(entry.path)
        if entry.kind is EntryKind.FORGOTTEN:
            self.entries.pop(key, None)
            self.children.get(fold(folder), {}).pop(fold(name), None)
        else:
            self.entries[key] = entry
            self.children.setdefault(fold(folder), {})[fold(name)] = name

    def within(self, folder: str) -> Iterator[OverlayEntry]:
        """The entries directly in `folder`.

        They are sorted, since a data set that a program lists unsorted must have the same order in
        the trial that made it and in those that get it.
        """
        for key in sorted(self.children.get(fold(folder), ())):
            entry = self.entries.get(os.path.join(fold(folder), key))
            if entry is not None:
                yield entry


class Journal:
    """The changes of one layer, shared by all processes of the program."""

    def __init__(self, root: str, layer: Layer, counters: memoryview) -> None:
        self.root = root
        self.layer = layer
        self.counters = counters
        self.path = os.path.join(root, JOURNAL)
        self.read_bytes = 0

    def stale(self) -> bool:
        """Whether another process has changed something."""
        changed: bool = self.counters[self.layer] != self.read_bytes
        return changed

    def append(self, path: str, kind: str, where: str = "", layer: Layer = Layer.REAL) -> None:
        """Notify the other processes, in one write so that lines do not mix."""
        if layer is self.layer:
            where = os.path.relpath(plain(where), self.root)
        line = json.dumps([path, kind, where, layer]).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        handle = system.open(self.path, flags, 0o666)
        try:
            system.write(handle, line)
            end = system.lseek(handle, 0, os.SEEK_CUR)
        finally:
            system.close(handle)
        if end - len(line) == self.read_bytes:
            self.read_bytes = end
        self.counters[self.layer] = end

    def news(self) -> Iterator[tuple[str, str, str, Layer]]:
        """The lines that this process has not read yet."""
        try:
            with raw_io.open(self.path, "rb") as file:
                file.seek(self.read_bytes)
                text = file.read()
        except FileNotFoundError:
            text = b""
        whole = text[: text.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        yield from parse(whole, self.root, self.layer)


def parse(text: bytes, root: str, journal_layer: Layer) -> Iterator[tuple[str, str, str, Layer]]:
    """Journal lines of the layer `journal_layer` that lies at `root`."""
    for line in text.splitlines():
        path, kind, where, layer = json.loads(line)
        if layer == journal_layer:
            where = lengthened(os.path.join(root, where))
        yield path, kind, where, Layer(layer)


class OverlayState:
    """The numbers that all processes of the program share: the phase and journal lengths."""

    SIZE = 4 * 8

    def __init__(self, scratch: str) -> None:
        make_folders(scratch)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        handle = system.open(os.path.join(scratch, STATE), flags, 0o600)
        try:
            if system.fstat(handle).st_size < self.SIZE:
                system.ftruncate(handle, self.SIZE)
            self.memory = mmap.mmap(handle, self.SIZE)
        finally:
            system.close(handle)
        self.numbers = memoryview(self.memory).cast("Q")

    @property
    def stepped(self) -> bool:
        """The program has taken its first step."""
        return bool(self.numbers[0])

    def step(self) -> None:
        """From now on all processes write to the layer `after`."""
        self.numbers[0] = 1

    def close(self) -> None:
        """Release the shared memory."""
        with contextlib.suppress(BufferError):
            self.numbers.release()
            self.memory.close()


class Store:
    """The index together with its journals, on which all processes of the program agree."""

    def __init__(self, scratch: str) -> None:
        self.state = OverlayState(scratch)
        self.lock = threading.RLock()
        self.index = Index()
        self.roots = {
            Layer.PREPARED: os.path.join(scratch, "prepared"),
            Layer.AFTER: os.path.join(scratch, "after"),
        }
        for root in self.roots.values():
            make_folders(root)
        numbers = self.state.numbers
        self.journals = {layer: Journal(root, layer, numbers) for layer, root in self.roots.items()}
        self.pair = tuple(self.journals.values())
        self.marked: set[str] = set()

    def new_lock(self) -> None:
        """Renew the lock in a forked child, where the thread that held it does not exist."""
        self.lock = threading.RLock()

    @property
    def current(self) -> Layer:
        """The layer that is written to."""
        return Layer.AFTER if self.state.stepped else Layer.PREPARED

    def refresh(self) -> bool:
        """Apply the changes of other processes; returns True if folders or links may have moved."""
        moved = False
        with self.lock:
            for journal in self.pair:
                for path, kind, where, layer in journal.news():
                    if kind == READ:
                        continue
                    moved = moved or kind in (EntryKind.LINK, EntryKind.GONE, EntryKind.FORGOTTEN)
                    self.index.put(OverlayEntry(path, EntryKind(kind), where, layer))
        return moved

    def put(self, entry: OverlayEntry) -> None:
        """Set an entry, for all processes."""
        with self.lock:
            self.index.put(entry)
            journal = self.journals[self.current]
            journal.append(entry.path, entry.kind.value, entry.where, entry.layer)

    def mark_read(self, entry: OverlayEntry) -> None:
        """Record that the program reads back what it prepared, which makes it a data set."""
        folder = os.path.dirname(entry.path)
        if entry.layer is Layer.PREPARED and folder not in self.marked:
            self.marked.add(folder)
            self.journals[Layer.PREPARED].append(folder, READ)
