"""Which programs use a GPU, and how much, as Linux reports for each open file of its driver.

The kernel's Documentation/gpu/drm-usage-stats.rst has the format of /proc/PID/fdinfo/FD. Drivers:
i915 since Linux 5.19, xe since 6.11. Searching the files of all processes takes long, so it is done
every ten seconds, a part at a time; in between only the known clients are read. Other users'
processes can only be read by root, and are not counted.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flatout.probing import reading

SCAN_EVERY_S = 10.0
MOST_FILES = 4000
"""Open files examined in one call, about 10 ms; the rest waits for the next."""
LEAST_S = 0.05
"""Least seconds between two readings for a meaningful share of time."""
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
MEMORY = ("resident", "total", "memory")
"""A driver's figures for a region of memory, the best first; `memory` is old kernels' name."""


@dataclass(frozen=True)
class EngineTime:
    """What a client has used of one class of engines since it began."""

    busy: int
    """Nanoseconds, or cycles if `passed` is known."""
    passed: int | None
    """All cycles that have passed, or None if `busy` is in nanoseconds."""
    capacity: int
    """Engines of this class."""


@dataclass(frozen=True)
class ClientFacts:
    """What the driver reports about one client."""

    driver: str
    address: str
    """The GPU's bus address: 0000:03:00.0."""
    number: int
    engines: dict[str, EngineTime]
    memory: dict[str, int]
    """Bytes by region: vram0 and local0 on the card, gtt and system0 on the host."""


@dataclass(frozen=True)
class DrmUse:
    """What one client (a program's connection to a GPU) uses of it now."""

    pid: int
    address: str
    memory: dict[str, int]
    """Bytes by region, as in `ClientFacts`."""
    busy: dict[str, float]
    """Share of each class of engines' time since the last call, 0 to 1; empty if unknown."""
    used: frozenset[str]
    """Classes of engines that it has ever used."""


def from_fdinfo(text: str) -> ClientFacts | None:
    """A client, or None for another kind of file or a driver that does not report it."""
    fields = dict(re.findall(r"^drm-([\w-]+):[ \t]*(\S.*?)[ \t]*$", text, re.ASCII | re.MULTILINE))
    number = reading.whole(fields.get("client-id"))
    if "driver" not in fields or "pdev" not in fields or number is None:
        return None
    return ClientFacts(
        driver=fields["driver"],
        address=fields["pdev"].lower(),
        number=number,
        engines=_engines(fields),
        memory=_memory(fields),
    )


def _engines(fields: dict[str, str]) -> dict[str, EngineTime]:
    found = {}
    for key, value in fields.items():
        kind, _, name = key.partition("-")
        capacity = reading.whole(fields.get(f"engine-capacity-{name}")) or 1
        if kind == "engine" and not name.startswith("capacity-"):
            busy, passed = reading.whole(value.removesuffix(" ns")), None
        elif kind == "cycles" and f"total-cycles-{name}" in fields:
            busy, passed = reading.whole(value), reading.whole(fields[f"total-cycles-{name}"])
            if passed is None:
                continue
        else:
            continue
        if busy is not None and busy >= 0:
            found[name] = EngineTime(busy, passed, max(1, capacity))
    return found


def _memory(fields: dict[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, value in fields.items():
        kind, _, region = key.partition("-")
        size = _bytes(value)
        if kind not in MEMORY or size is None or region.startswith("cycles-"):
            continue
        better = MEMORY[: MEMORY.index(kind)]
        if not any(f"{name}-{region}" in fields for name in better):
            found[region] = size
    return found


def _bytes(text: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,18}) ?([KMG]iB|B|)", text)
    return int(match[1]) * UNITS[match[2]] if match else None


@dataclass
class _Door:
    """One client, through one of the open files that lead to it."""

    pid: int
    path: Path
    facts: ClientFacts
    read_s: float
    use: DrmUse


class DrmClients:
    """The programs that use the GPUs of these drivers, polled repeatedly."""

    def __init__(self, root: Path, drivers: Collection[str]) -> None:
        self._root, self._drivers = root, drivers
        self._doors: dict[tuple[str, int], _Door] = {}
        self._scan: Iterator[tuple[int, str] | None] | None = None
        self._scan_s: float | None = None
        self._files: list[tuple[int, str]] = []
        self.complete = False
        """Whether all processes have been examined once."""

    def uses(self, now_s: float, asleep: Collection[str] = ()) -> tuple[DrmUse, ...]:
        """Each readable client now; `now_s` is of a clock that only goes forward.

        asleep: addresses of GPUs that must not be woken; nothing runs on them.
        """
        for key, door in list(self._doors.items()):
            if door.facts.address in asleep:
                # Its engines are idle, and the driver's clock may have stopped.
                still = dict.fromkeys(door.facts.engines, 0.0)
                door.read_s, door.use = now_s, replace(door.use, busy=still)
            elif not self._read(door, now_s):
                del self._doors[key]
        self._look(now_s)
        return tuple(door.use for door in self._doors.values())

    def _read(self, door: _Door, now_s: float) -> bool:
        """Whether the file still leads to the client."""
        if now_s - door.read_s < LEAST_S:
            return True
        facts = from_fdinfo(reading.text(door.path) or "")
        if facts is None or (facts.address, facts.number) != (
            door.facts.address,
            door.facts.number,
        ):
            return False
        before, seconds = door.facts.engines, now_s - door.read_s
        busy = {
            name: share
            for name, engine in facts.engines.items()
            if name in before and (share := _share(before[name], engine, seconds)) is not None
        }
        door.use = replace(_use(door.pid, facts), busy=busy)
        # A driver may report less than before for a while; the larger value counts until then.
        kept = {name: _later(before.get(name), engine) for name, engine in facts.engines.items()}
        door.facts, door.read_s = replace(facts, engines=kept), now_s
        return True

    def _look(self, now_s: float) -> None:
        """Examine the next part of all processes; after the last, add the clients found."""
        if self._scan is None:
            if self._scan_s is not None and now_s - self._scan_s < SCAN_EVERY_S:
                return
            self._scan, self._scan_s, self._files = _open_files(self._root), now_s, []
        part = list(itertools.islice(self._scan, MOST_FILES))
        self._files += [file for file in part if file is not None]
        if len(part) < MOST_FILES:
            self._scan, self.complete = None, True
            self._take_up(now_s)

    def _take_up(self, now_s: float) -> None:
        began = {pid: _began(self._root, pid) for pid, _ in self._files}
        # A forked process, such as a loader's worker, also has its parent's clients:
        # they are counted once, for the older process.
        for pid, name in sorted(self._files, key=lambda file: (began[file[0]], file[0])):
            path = self._root / f"proc/{pid}/fdinfo/{name}"
            if any(door.path == path for door in self._doors.values()):
                continue
            facts = from_fdinfo(reading.text(path) or "")
            if facts is None or facts.driver not in self._drivers:
                continue
            key = facts.address, facts.number
            if key not in self._doors:
                self._doors[key] = _Door(pid, path, facts, now_s, _use(pid, facts))


def _use(pid: int, facts: ClientFacts) -> DrmUse:
    used = frozenset(name for name, engine in facts.engines.items() if engine.busy)
    return DrmUse(pid, facts.address, facts.memory, {}, used)


def _share(before: EngineTime, now: EngineTime, seconds: float) -> float | None:
    span = seconds * 1e9
    if now.passed is not None:
        span = now.passed - (before.passed or 0)
    if span <= 0:
        return None
    return min(1.0, max(0, now.busy - before.busy) / span / now.capacity)


def _later(before: EngineTime | None, now: EngineTime) -> EngineTime:
    if before is None or (now.passed or 0) < (before.passed or 0):  # a clock that began again
        return now
    return replace(now, busy=max(before.busy, now.busy))


def _open_files(root: Path) -> Iterator[tuple[int, str] | None]:
    """(process, number) of each open file of a GPU; None for other files and for each process."""
    for pid in _names(f"{root}/proc"):
        if not pid.isdecimal():
            continue
        yield None
        for name in _names(f"{root}/proc/{pid}/fd"):
            try:
                target = os.readlink(f"{root}/proc/{pid}/fd/{name}")  # noqa: PTH115
            except OSError:
                continue
            yield (int(pid), name) if target.startswith("/dev/dri/") else None


def _names(folder: str) -> list[str]:
    """The names in a folder, as text since paths cost more; empty if another user's or gone."""
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _began(root: Path, pid: int) -> int:
    """When the process began, in the kernel's ticks."""
    words = (reading.text(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    return (reading.whole(words[19]) or 0) if len(words) > 19 else 0
