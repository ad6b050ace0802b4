"""Watch the job that this `flatout run` has started: history, alerts, the stacks of a hang.

A thread of the host that looks once a second. An error costs the watch, not the run.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flatout.nouns.alert import Alert
from flatout.nouns.frame import Frame
from flatout.nouns.machine_sample import MachineSample
from flatout.probing.live.sampler import MachineSampler
from flatout.running.one import jobs
from flatout.running.ranks import stacks
from flatout.watching.alert_book import AlertBook
from flatout.watching.following import FollowedJob, FollowedRank
from flatout.watching.recording import HistoryRecording, last_frame
from flatout.watching.rules import View
from flatout.watching.thinned import Thinned
from flatout_agent.wire import job_list
from flatout_agent.wire.job_list import JobEntry

EVERY_S = 1.0
JOIN_S = 1.0
"""How long the program's end waits for the current look. A driver may take long for a sample; that
happens outside the lock, and nobody waits for it.
"""
Tell = Callable[[str], None]

MOST_RUNS = 20


class JobWatch:
    """One run's watch: `prepare` before the program starts, `begin`, `end`, `close`."""

    def __init__(
        self, program: str, boosts: tuple[str, ...], tell: Tell, every_s: float = EVERY_S
    ) -> None:
        """tell: called with a line for the user about each alert that begins to fire."""
        self._program, self._boosts, self._tell = program, boosts, tell
        self._every_s = every_s
        self._entry: JobEntry | None = None
        self._job: FollowedJob | None = None
        self._recording: HistoryRecording | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._book = AlertBook()
        self._machines: Thinned[MachineSample] = Thinned()
        self._machine: list[MachineSample] = []
        self._told: set[tuple[object, ...]] = set()
        self._hostname = socket.gethostname()

    def prepare(self, run_folder: Path) -> str:
        """List the job. Returns the folder for its processes' rings, or "" if there is none."""
        try:
            self._entry = jobs.new_entry(self._program, run_folder, self._boosts)
            job_list.write(self._entry)
        except OSError:
            self._entry = None
            return ""
        self._recording = HistoryRecording(run_folder)
        return self._entry.rings

    def begin(self, pid: int) -> None:
        """The program runs as process `pid`."""
        if self._entry is None:
            return
        self._entry = replace(self._entry, program_pid=pid)
        with suppress(OSError):
            job_list.write(self._entry)
        self._job = FollowedJob(self._entry)
        self._thread = threading.Thread(target=self._run, name="flatout watch", daemon=True)
        self._thread.start()

    def end(self, shell_code: int) -> None:
        """The program has ended; exit code as a shell shows it."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
        if self._entry is None:
            return
        self._entry = replace(self._entry, ended_s=time.time(), exit_code=shell_code)
        with suppress(OSError):
            job_list.write(self._entry)

    def close(self, explained: tuple[str, str, tuple[str, ...]] | None = None) -> None:
        """Write the last frame. explained: title, cause and cures of a crash."""
        if self._entry is None or self._job is None:
            return
        free = self._lock.acquire(timeout=JOIN_S)  # if not free, stacks are being collected
        try:
            if free:
                self._job.entry, self._job.ended_s = self._entry, self._entry.ended_s
                self._job.history.explained = explained
                self._look(self._machine[-1] if self._machine else None)
        finally:
            if free:
                self._lock.release()
            jobs.clear(self._entry)

    def _run(self) -> None:
        try:
            assert self._entry is not None
            steps = steps_before(Path(self._entry.run_folder), self._program)
            with self._lock:
                if steps is not None and self._job is not None and not self._over.is_set():
                    self._entry = self._job.entry = replace(self._entry, steps_expected=steps)
                    with suppress(OSError):
                        job_list.write(self._entry)
            with MachineSampler() as sampler:
                while not self._over.wait(self._every_s):
                    assert self._entry is not None
                    machine = sampler.sample((self._entry.folder, self._entry.run_folder))
                    with self._lock:
                        if not self._over.is_set():
                            self._machine = self._machines.add(machine)
                            self._look(machine)
        except Exception as error:
            self._tell(f"the run is no longer watched: {type(error).__name__}: {error}")

    def _look(self, machine: MachineSample | None) -> None:
        assert self._job is not None
        assert self._entry is not None
        now_s = time.time()
        if self._entry.ended_s is None:
            self._job.update(now_s, machine)
        else:
            self._job.settle()
        views = [
            View(now_s, self._hostname, self._machine, job, [self._job.history])
            for job in (None, self._job.history)
        ]
        alerts = self._book.update(views)
        for alert in alerts:
            self._say(alert)
        sample = self._job.with_steps(self._job.sample(self._hostname, alerts))
        machines = () if machine is None else (machine,)
        if self._recording is not None:
            self._recording.add(Frame(now_s, machines, (sample,), alerts))

    def _say(self, alert: Alert) -> None:
        """Report an alert once, when it begins to fire; the run itself reports its end."""
        key = (*alert.key, alert.since_s)
        if alert.state != "firing" or key in self._told:
            return
        self._told.add(key)
        more = f"flatout explain {alert.code}"
        if alert.code == "HANG001" and self._job is not None:
            text = hang_stacks(self._job.ranks)
            path = stacks.write(text, self._job.entry.run_folder) if text else None
            self._job.history.stacks = path
            more = f"stacks: {path}" if path else more
        if alert.code != "END001":
            subject = f" ({alert.subject})" if alert.subject else ""
            self._tell(f"{alert.code}{subject}: {alert.title}; {alert.evidence}. {more}")


def hang_stacks(ranks: Sequence[FollowedRank], wait_s: float = stacks.WAIT_S) -> str:
    """The stacks of all ranks, the one that is furthest behind first; empty if nobody was asked."""
    return stacks.together(stacks.ask(((rank.ring, rank.sample().step) for rank in ranks), wait_s))


def steps_before(run_folder: Path, program: str) -> int | None:
    """Steps that this program, with these arguments, took when it last ended without an error.

    run_folder: that of the run that begins now; folders of earlier runs are beside it.
    """
    try:
        folders = sorted(path for path in run_folder.parent.iterdir() if path != run_folder)
    except OSError:
        return None
    for folder in folders[: -MOST_RUNS - 1 : -1]:
        frame = last_frame(folder)
        for job in frame.jobs if frame is not None else ():
            if job.program == program and job.exit_code == 0 and job.step:
                return job.step
    return None
