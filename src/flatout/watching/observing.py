"""All jobs of this machine, seen by a monitor: a separate process that changes nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.nouns.machine_sample import MachineSample
from flatout.probing.live.foreign import ForeignJob, ForeignJobs
from flatout.probing.live.sampler import MachineSampler
from flatout.probing.live.trees import TreeUse
from flatout.running.one import jobs
from flatout.watching.alert_book import AlertBook
from flatout.watching.following import FollowedJob
from flatout.watching.recording import last_frame
from flatout.watching.rules import View
from flatout.watching.thinned import Thinned

KEPT_S = 600.0
"""An ended job is shown for this long."""
FIRST_S = 0.3
"""Between the two samples of a single frame, so that it has rates."""


class JobsObserver:
    """Use it in a `with` statement.

    library: pynvml, or a fake of it. gpm: ask GPUs about their multiprocessors, which costs the
    driver more.
    """

    def __init__(self, library: Any = None, gpm: bool = False) -> None:
        self._sampler = MachineSampler(library=library)
        self._sampler.gpm_wanted = gpm
        self._stack = ExitStack()
        self._jobs: dict[str, FollowedJob] = {}
        self._foreign = ForeignJobs()
        self._trees: dict[int, TreeUse] = {}
        self._book = AlertBook()
        self._machines: Thinned[MachineSample] = Thinned()
        self._hostname = socket.gethostname()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._sampler)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def frames(self, every_s: float = 1.0) -> Iterator[Frame]:
        """A frame every `every_s` seconds; the first at once, and soon another that has rates."""
        yield self.frame()
        time.sleep(FIRST_S)
        while True:
            yield self.frame()
            time.sleep(every_s)

    def once(self) -> Frame:
        """One frame, with rates."""
        self.frame()
        time.sleep(FIRST_S)
        return self.frame()

    def frame(self) -> Frame:
        """The current state of everything."""
        now_s = time.time()
        self._list(now_s)
        folders = [job.entry.folder for job in self._jobs.values() if job.ended_s is None]
        machine = self._sampler.sample(folders)
        history = self._machines.add(machine)
        for job in self._jobs.values():
            job.settle() if job.ended_s is not None else job.update(now_s, machine)
        followed = [job.history for job in self._jobs.values()]
        views = [View(now_s, self._hostname, history, None, followed)]
        views += [View(now_s, self._hostname, history, job, followed) for job in followed]
        alerts = self._book.update(views)
        own = [
            job.with_steps(job.sample(self._hostname, [a for a in alerts if a.job == job.entry.id]))
            for job in self._jobs.values()
        ]
        foreign = self._foreign_jobs(machine)
        shown = sorted([*own, *foreign], key=lambda job: (job.state == "ended", job.began_s or 0))
        return Frame(now_s, (machine,), tuple(shown), alerts, tuple(self._book.notes))

    def _list(self, now_s: float) -> None:
        """Add new jobs, notice ends, drop those that ended long ago."""
        listed = {entry.id: entry for entry in jobs.listed()}
        for entry in listed.values():
            job = self._jobs.get(entry.id)
            over = entry.ended_s is not None or jobs.owner_alive(entry) is False
            if job is None and not over:
                self._jobs[entry.id] = FollowedJob(entry)
            elif job is None and entry.ended_s is not None and now_s - entry.ended_s < KEPT_S:
                self._jobs[entry.id] = FollowedJob(entry, last_frame(Path(entry.run_folder)))
            elif job is not None:
                job.entry = entry
                if over and job.ended_s is None:
                    job.ended_s = entry.ended_s or now_s
        for name, job in list(self._jobs.items()):
            if name not in listed and job.ended_s is None:
                job.ended_s = now_s
            if job.ended_s is not None and abs(now_s - job.ended_s) > KEPT_S:
                del self._jobs[name]

    def _foreign_jobs(self, machine: MachineSample) -> list[JobSample]:
        on_gpu = [use.pid for gpu in machine.gpus for use in gpu.processes or () if use.computes]
        running = [job for job in self._jobs.values() if job.ended_s is None]
        own = set().union(*(job.history.pids for job in running))
        own |= {job.entry.pid for job in running if jobs.owner_alive(job.entry)}  # no ring yet
        found = self._foreign.find(own, on_gpu)
        self._trees = {job.pid: self._trees.get(job.pid) or TreeUse(job.pid) for job in found}
        return [self._foreign_sample(job, machine) for job in found]

    def _foreign_sample(self, job: ForeignJob, machine: MachineSample) -> JobSample:
        cores, memory, pids = self._trees[job.pid].read()
        uses = [
            (gpu.index, use.memory_bytes)
            for gpu in machine.gpus
            for use in gpu.processes or ()
            if use.pid in pids
        ]
        return JobSample(
            id=f"{job.pid}-{int(job.began_s)}",
            state="foreign",
            hostname=self._hostname,
            program=job.command,
            pid=job.pid,
            user=job.user,
            folder=job.folder,
            began_s=job.began_s,
            cpu_cores=cores,
            memory_bytes=memory,
            gpu_memory_bytes=sum(used or 0 for _, used in uses) if uses else None,
            gpus=tuple(dict.fromkeys(index for index, _ in uses)),
        )
