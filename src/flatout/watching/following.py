"""One job followed from outside: its rings and processes become a history and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from flatout.nouns.alert import Alert
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample, JobState, RankSample
from flatout.nouns.machine_sample import MachineSample
from flatout.probing.live.trees import TreeUse, waits_for_input
from flatout.running.one.ring import Ring, rings
from flatout.watching import steps
from flatout.watching.rules import JobHistory, TreeSample
from flatout.watching.steps import RankSteps
from flatout_agent.wire import pulse
from flatout_agent.wire.job_list import JobEntry

MOST_STEPS_SHOWN = 200
LOADER_BOOST = "loader-workers"
SILENT_S = 20.0
"""After this long without a step, a rank is asked whether it waits for its user."""
RETRY_S = 5.0
"""A ring that could not be read is tried again after this long."""


class FollowedRank:
    """One training process."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        header = ring.header
        self.steps = RankSteps(header.rank, header.pid, header.world_size)
        self.foreign = ring.writer_alive() is None
        """Whether its pid means nothing here, as it runs in a container."""
        self.tree = TreeUse(header.pid)
        self.pids: frozenset[int] = frozenset()
        self.gpu_memory_bytes: int | None = None

    def update(self, now_s: float, machine: MachineSample | None) -> None:
        """Drain the ring, ask the system, find its GPUs."""
        self.steps.add(self.ring.new())
        history = self.steps.history
        history.device = self.ring.header.device.rstrip(b"\0").decode("ascii", "replace") or None
        history.ended = self.ring.ended or self.ring.writer_alive() is False
        if self.foreign:
            return
        cores, memory, self.pids = self.tree.read()
        gpus = machine.gpus if machine is not None else ()
        uses = [
            (gpu.index, use) for gpu in gpus for use in gpu.processes or () if use.pid in self.pids
        ]
        history.gpus = tuple(dict.fromkeys(index for index, _ in uses))
        if not history.gpus and len(gpus) == 1 and history.device not in (None, "cpu"):
            # The only GPU, for a driver that lists no processes, as in a container.
            history.gpus = () if gpus[0].processes else (gpus[0].index,)
        known = [use.memory_bytes for _, use in uses if use.memory_bytes is not None]
        self.gpu_memory_bytes = sum(known) if known else None
        self.steps.add_tree(TreeSample(now_s, cores, memory))
        clocks = [(gpu.index, gpu.clock_mhz) for gpu in gpus if gpu.clock_mhz is not None]
        self.steps.add_clocks([mhz for index, mhz in clocks if index in history.gpus])
        last_s = self.steps.steps[-1].time_s if self.steps.steps else 0.0
        silent = bool(last_s) and now_s - last_s > SILENT_S
        history.waits_for_input = silent and waits_for_input(self.ring.header.pid)

    def sample(self) -> RankSample:
        """Its current state."""
        history, recent = self.steps.history, self.steps.recent()
        tree = history.trees[-1] if history.trees else None
        last = self.steps.steps[-1] if self.steps.steps else None
        return RankSample(
            rank=history.rank,
            pid=history.pid,
            step=last.step if last is not None else None,
            step_s=steps.step_s(recent),
            wait_share=steps.wait_share(recent),
            samples_per_s=steps.samples_per_s(recent),
            loss=self.steps.last_loss,
            last_step_s=last.time_s if last is not None else None,
            cpu_cores=tree.cpu_cores if tree is not None else None,
            memory_bytes=tree.memory_bytes if tree is not None else None,
            gpus=history.gpus,
            gpu_memory_bytes=self.gpu_memory_bytes,
            device=history.device,
            steps_lost=self.ring.lost,
        )


class FollowedJob:
    """One job in the list, as far as it runs on this machine."""

    def __init__(self, entry: JobEntry, last: Frame | None = None) -> None:
        """last: for a job that has already ended, the last frame of its history."""
        self.entry = entry
        self._last = last.jobs[0] if last is not None and last.jobs else None
        self.ended_s = entry.ended_s
        self.history = JobHistory(
            id=entry.id,
            pid=entry.program_pid or entry.pid,
            began_s=entry.began_s,
            run_folder=entry.run_folder or None,
            folder=entry.folder,
            boosts=entry.boosts,
            program=entry.program,
        )
        if last is not None:
            self.history.explained = _explained(last)
        self._ranks: dict[Path, FollowedRank] = {}
        self._refused: dict[Path, float] = {}

    def update(self, now_s: float, machine: MachineSample | None = None) -> None:
        """Read its current state."""
        self._find(now_s)
        for rank in self._ranks.values():
            rank.update(now_s, machine)
        history = self.history
        history.pid = self.entry.program_pid or self.entry.pid
        history.ranks = [rank.steps.history for rank in self.ranks]
        history.pids = frozenset().union(*(rank.pids for rank in self.ranks))
        headers = [rank.ring.header for rank in self.ranks]
        alone = any(header.loader_workers == 0 for header in headers)
        planned = LOADER_BOOST in self.entry.boosts
        self.history.wait_boost = LOADER_BOOST if alone and not planned else None
        saves = max((header.largest_save_bytes for header in headers), default=0)
        self.history.largest_save_bytes = saves or None
        history.ended_s, history.exit_code = self.ended_s, self.entry.exit_code

    def settle(self) -> None:
        """Take the last steps of the ended job; its processes are gone."""
        self._find(0.0)
        for rank in self._ranks.values():
            rank.steps.add(rank.ring.new())
        history = self.history
        history.ranks = [rank.steps.history for rank in self.ranks]
        history.ended_s, history.exit_code = self.ended_s, self.entry.exit_code

    @property
    def ranks(self) -> list[FollowedRank]:
        """Its training processes by rank; for each rank, the one that last took a step.

        A program that the job starts meanwhile, as for an evaluation, has the same rank.
        """
        newest: dict[int, FollowedRank] = {}
        for rank in self._ranks.values():
            header = rank.ring.header
            other = newest.get(header.rank)
            if other is None or _order(rank) > _order(other):
                newest[header.rank] = rank
        return [newest[number] for number in sorted(newest)]

    def _find(self, now_s: float) -> None:
        for path in rings(Path(self.entry.rings)):
            if path in self._ranks or now_s < self._refused.get(path, now_s):
                continue
            try:
                self._ranks[path] = FollowedRank(Ring(path))
            except (OSError, ValueError):  # being created, or damaged
                self._refused[path] = now_s + RETRY_S

    def sample(self, hostname: str, alerts: Sequence[Alert] = ()) -> JobSample:
        """Its current state; alerts: the firing ones about it."""
        entry = self.entry
        if self._last is not None:
            return replace(self._last, state="ended", hostname=hostname, recent_steps=())
        ranks = tuple(rank.sample() for rank in self.ranks)
        trained = [rank for rank in ranks if rank.step is not None]
        base = JobSample(
            id=entry.id,
            state=self._state(alerts),
            hostname=hostname,
            program=entry.program,
            pid=self.history.pid,
            folder=entry.folder,
            run_folder=entry.run_folder or None,
            began_s=entry.began_s,
            ended_s=self.ended_s,
            exit_code=entry.exit_code,
            boosts=entry.boosts,
            ranks=ranks,
            gpus=tuple(dict.fromkeys(index for rank in ranks for index in rank.gpus)),
            cpu_cores=_total([rank.cpu_cores for rank in ranks]),
            memory_bytes=_whole([rank.memory_bytes for rank in ranks]),
            gpu_memory_bytes=_whole([rank.gpu_memory_bytes for rank in ranks]),
        )
        return _with_steps(base, trained, self.entry.steps_expected) if trained else base

    def with_steps(self, sample: JobSample) -> JobSample:
        """The sample with the steps since the last call, of its lowest rank."""
        fresh = [rank.steps.take_fresh(MOST_STEPS_SHOWN) for rank in self.ranks]
        return replace(sample, recent_steps=fresh[0] if fresh else ())

    def _state(self, alerts: Sequence[Alert]) -> JobState:
        if self.ended_s is not None:
            return "ended"
        last = [rank.steps.steps[-1] for rank in self.ranks if rank.steps.steps]
        if any(alert.code == "HANG001" and alert.state == "firing" for alert in alerts):
            return "stalled"
        if not last:
            return "starting"
        return "tuning" if any(step.flags & pulse.TUNING for step in last) else "training"


def _explained(last: Frame) -> tuple[str, str, tuple[str, ...]] | None:
    """The cause that END001 gave when the job ended."""
    for alert in last.alerts:
        how, _, cause = alert.evidence.partition("; ")
        if alert.code == "END001" and how and cause:
            return alert.title.partition(": ")[2] or alert.title, cause, (alert.cure.text,)
    return None


def _order(rank: FollowedRank) -> tuple[float, float]:
    steps = rank.steps.steps
    return steps[-1].time_s if steps else 0.0, rank.ring.header.began_s


def _with_steps(base: JobSample, trained: Sequence[RankSample], expected: int | None) -> JobSample:
    step = min(rank.step or 0 for rank in trained)
    step_s = [rank.step_s for rank in trained if rank.step_s is not None]
    waits = [rank.wait_share for rank in trained if rank.wait_share is not None]
    losses = [rank.loss for rank in trained if rank.loss is not None]
    usual = median(step_s) if step_s else None
    left = (expected - step) * usual if expected and usual and base.ended_s is None else None
    return replace(
        base,
        step=step,
        steps_expected=expected,
        step_s=usual,
        samples_per_s=_total([rank.samples_per_s for rank in trained]),
        wait_share=fmean(waits) if waits else None,
        loss=fmean(losses) if losses else None,
        left_s=max(0.0, left) if left is not None else None,
    )


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _whole(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
