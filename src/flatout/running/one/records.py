"""The agents' records: read while they are written, and what they tell of each process.

Records become state here and nowhere else: trials, duels, live tunings, profiles and the figures of
a finished run ask these classes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flatout_agent import wire

TOOK_HOLD = ("applied", "engaged")
"""States of a boost that took hold; one that cannot know whether it did stays at `applied`."""
LAST: dict[type[wire.Record], str] = {
    wire.CrashScene: "scene",
    wire.HistorySeen: "history",
    wire.AtGate: "gate",
    wire.LoopSeen: "loop",
    wire.HostSeen: "host",
    wire.LiveSummary: "live",
    wire.RanksSeen: "ranks",
    wire.MemorySeen: "memory",
    wire.ExportSeen: "export",
    wire.ExportRefused: "export_refused",
    wire.RanksRefused: "refused",
    wire.NativeSeen: "native",
    wire.Ended: "ended",
}
"""Records of which a process keeps only the last one, under this name."""


class Tail:
    """Follows every `<pid>.jsonl` of one folder and gives each complete line once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped = 0
        """Lines that are not records: damaged, or of a kind that this version does not know."""
        self._offsets: dict[Path, int] = {}
        self._partial: dict[Path, bytes] = {}

    def new(self) -> Iterator[tuple[int, wire.Record]]:
        """(process id, record) for each line completed since the last call.

        The lines of one process keep their order; the processes come one after the other.
        """
        for path in sorted(self.folder.glob("*.jsonl")):
            if not path.stem.isdecimal():
                continue
            try:
                with path.open("rb") as file:
                    file.seek(self._offsets.get(path, 0))
                    data = file.read()
            except OSError:
                continue
            self._offsets[path] = self._offsets.get(path, 0) + len(data)
            *lines, rest = (self._partial.get(path, b"") + data).split(b"\n")
            self._partial[path] = rest  # a line still being written
            for line in filter(bytes.strip, lines):
                try:
                    record = wire.record(line.decode("utf-8"))
                except Exception:  # whatever a damaged line makes the decoder raise
                    self.skipped += 1
                    continue
                yield int(path.stem), record


@dataclass
class Process:
    """What one process has recorded so far."""

    pid: int = 0
    rank: int = 0
    torch: str | None = None
    """Its version, once it is imported."""
    facts: wire.JobFacts | None = None
    steps: list[wire.StepTaken] = field(default_factory=list)
    """Steps that are recorded one by one: all in a trial, some in a profile."""
    losses: tuple[float | None, ...] = ()
    notes: dict[str, wire.BoostNote] = field(default_factory=dict)
    """The last note of each boost, by id."""
    redirected: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    scene: wire.CrashScene | None = None
    history: wire.HistorySeen | None = None
    gate: wire.AtGate | None = None
    loop: wire.LoopSeen | None = None
    host: wire.HostSeen | None = None
    decisions: list[wire.Decided] = field(default_factory=list)
    blocks: list[wire.BlockRun] = field(default_factory=list)
    live: wire.LiveSummary | None = None
    ranks: wire.RanksSeen | None = None
    memory: wire.MemorySeen | None = None
    export: wire.ExportSeen | None = None
    export_refused: wire.ExportRefused | None = None
    refused: wire.RanksRefused | None = None
    native: wire.NativeSeen | None = None
    ended: wire.Ended | None = None

    def add(self, record: wire.Record) -> None:
        """Account for one record."""
        match record:
            case wire.Started():
                self.rank = record.rank
            case wire.TorchSeen():
                self.torch = record.version
            case wire.JobSeen():
                self.facts = record.facts
            case wire.StepTaken():
                self.steps.append(record)
            case wire.LossesSeen():
                self.losses = record.losses
            case wire.BoostNote():
                self.notes[record.id] = record
            case wire.Redirected():
                self.redirected.append(record.path)
            case wire.Fault():
                self.faults.append(f"{record.where}: {record.message}")
            case wire.Crashed():
                self.crashes.append(record.text)
            case wire.Decided():
                self.decisions.append(record)
            case wire.BlockRun():
                self.blocks.append(record)
            case _:
                setattr(self, LAST[type(record)], record)

    @property
    def step_count(self) -> int:
        """Steps taken, as far as is known."""
        counts = [self.steps[-1].index + 1] if self.steps else []
        counts += [record.steps for record in (self.live, self.ended) if record is not None]
        return max(counts, default=0)

    @property
    def engaged(self) -> tuple[str, ...]:
        """Boosts that took hold."""
        return tuple(name for name, note in self.notes.items() if note.state in TOOK_HOLD)


class Processes:
    """All processes of one program that have recorded something."""

    def __init__(self, records: Iterable[tuple[int, wire.Record]] = ()) -> None:
        """records: (process id, record), in the order in which `Tail` gives them."""
        self._by_pid: dict[int, Process] = {}
        self.first_step_at: float | None = None
        """When the first step was read, by `time.monotonic` of this process."""
        for pid, record in records:
            self.add(pid, record)

    def add(self, pid: int, record: wire.Record) -> Process:
        """Account for one record and return the process that wrote it."""
        process = self._by_pid.setdefault(pid, Process(pid))
        process.add(record)
        if isinstance(record, wire.StepTaken) and self.first_step_at is None:
            self.first_step_at = time.monotonic()
        return process

    @property
    def all(self) -> list[Process]:
        """In the order of their first records."""
        return list(self._by_pid.values())

    @property
    def training(self) -> list[Process]:
        """Processes with recorded steps, by rank; within one rank the one with most steps first."""
        training = [process for process in self.all if process.steps]
        return sorted(training, key=lambda process: (process.rank, -len(process.steps)))

    @property
    def leading(self) -> Process | None:
        """The training process whose figures count: the lowest rank that took steps, or None."""
        return next(iter(self.training), None)

    @property
    def complete(self) -> bool:
        """Whether every process that trains has ended."""
        training = self.training
        return bool(training) and all(process.ended is not None for process in training)

    @property
    def torch_seen(self) -> bool:
        """Whether some process imported torch."""
        return any(process.torch for process in self.all)

    @property
    def backwards(self) -> int:
        """Most backward passes of any process, counted until an optimizer stepped."""
        return backwards_and_children(self.all)[0]

    @property
    def children(self) -> int:
        """Most processes that any of these started itself, through `multiprocessing`."""
        return backwards_and_children(self.all)[1]

    @property
    def redirected(self) -> tuple[str, ...]:
        """The paths that the program tried to save to, each once."""
        return tuple(dict.fromkeys(path for process in self.all for path in process.redirected))

    @property
    def faults(self) -> tuple[str, ...]:
        """Errors inside the agents, each once."""
        return tuple(dict.fromkeys(fault for process in self.all for fault in process.faults))

    def of(self, pid: int | None) -> Process | None:
        """The process with this id, or None if it has recorded nothing."""
        return self._by_pid.get(pid) if pid is not None else None


def backwards_and_children(processes: Iterable[Process]) -> tuple[int, int]:
    """The most backward passes and the most started processes among those that have ended."""
    endings = [process.ended for process in processes if process.ended is not None]
    return (
        max((ended.backwards for ended in endings), default=0),
        max((ended.children for ended in endings), default=0),
    )


def without_steps(torch_seen: bool, backwards: int, children: int = 0) -> tuple[str, str]:
    """What a program without a training step did instead, and what to do next.

    children: the number of processes that it started itself.
    """
    if children and not backwards:
        started = "a process" if children == 1 else f"{children} processes"
        return (
            f"took no optimizer step itself; it started {started} through multiprocessing, and "
            "flatout does not see what these train",
            "let the script train in the process that flatout starts, or start several with "
            "`flatout run --ranks`",
        )
    if backwards:
        times = "once" if backwards == 1 else f"{backwards:,} times"
        return (
            f"called backward {times}, but no optimizer took a step and no weight was seen to "
            "change between these calls",
            "let it train with an optimizer of torch.optim; updates by hand count as steps from "
            "the fourth one on",
        )
    activity = "imported torch but took no optimizer step" if torch_seen else "never imported torch"
    return activity, "name the script that trains"
