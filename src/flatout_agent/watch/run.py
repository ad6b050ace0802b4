"""Watch a normal run at next to no cost: count steps, samples and the time spent waiting."""

from __future__ import annotations

import sys
import time
from typing import Any

from flatout_agent import wire
from flatout_agent.booster import Booster
from flatout_agent.job import Job
from flatout_agent.recorder import Recorder
from flatout_agent.watch import Watcher
from flatout_agent.watch.tensors import peak_bytes, samples_in

REPORT_AFTER_STEPS = 20
"""By then every boost has taken hold or has given up."""


class RunWatch(Watcher):
    """Samples are those of the loader that feeds the training calls; without one, those of the
    model's first inputs, taken to stay the same.
    """

    def __init__(self, job: Job, booster: Booster, recorder: Recorder) -> None:
        self.job = job
        self.booster = booster
        self.recorder = recorder
        self.training_loader: Any = None
        self.last_loader: Any = None
        self.samples = 0
        self.wait_s = 0.0
        self.began: float | None = None
        self.ended = 0.0
        self._uncounted_samples = 0
        self._uncounted_wait_s = 0.0
        self._samples_at_start = 0
        self._wait_at_start = 0.0
        self._call_samples = 0
        self._report_at = REPORT_AFTER_STEPS

    def batch(self, loader: Any, batch: Any, wait_s: float) -> Any:
        self.last_loader = loader
        if self.training_loader is None or loader is self.training_loader:
            self._uncounted_wait_s += wait_s
            self._uncounted_samples += samples_in(self.job.torch, batch)
        return batch

    def model_found(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._report_at = self.job.steps + REPORT_AFTER_STEPS

    def training_call(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.training_loader = self.last_loader
        if not self.job.steps and next(iter(self.job.models)) is model:
            self._call_samples += samples_in(self.job.torch, (args, kwargs))

    def step(self) -> None:
        now = time.perf_counter()
        self.samples += self._uncounted_samples or self._call_samples
        self.wait_s += self._uncounted_wait_s
        self._uncounted_samples = 0
        self._uncounted_wait_s = 0.0
        self.ended = now
        if self.began is None:
            self.began = now
            self._samples_at_start, self._wait_at_start = self.samples, self.wait_s
        if self.job.steps >= self._report_at and self.booster.applied:
            self._report_at = 2 * self.job.steps
            self.booster.report(final=False)

    def program_ends(self) -> None:
        self.booster.report()
        recompiles, graph_breaks = compile_counters()
        self.recorder.write(
            wire.Ended(
                reason="program",
                steps=self.job.steps,
                samples=self.samples - self._samples_at_start,
                train_s=self.ended - self.began if self.began is not None else 0.0,
                wait_s=self.wait_s - self._wait_at_start,
                peak_bytes=peak_bytes(self.job),
                recompiles=recompiles,
                graph_breaks=graph_breaks,
            )
        )

    def end_at_once(self) -> None:
        """End the program: it was started for an answer that is there."""
        import multiprocessing
        import os

        RunWatch.program_ends(self)
        for child in multiprocessing.active_children():
            child.kill()
        for stream in (sys.stdout, sys.stderr):
            self.recorder.safely("flush", stream.flush)
        os._exit(0)


def compile_counters() -> tuple[int, int]:
    """(recompilations, graph breaks) that torch.compile counted; zeros where it was never used."""
    if "torch._dynamo" not in sys.modules:
        return 0, 0
    from flatout_agent.boosts import compile as compile_boost

    return compile_boost.counters()
