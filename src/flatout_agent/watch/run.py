"""Watch a normal run at almost no cost: count steps, samples and the time spent waiting."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.attach import tracebacks
from flatout_agent.job import Job
from flatout_agent.speedups.memory_counters import allocated_bytes, resident_bytes
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import Watcher
from flatout_agent.watch.beat import Beat
from flatout_agent.watch.ending import children_started
from flatout_agent.watch.loop_record import LoopRecord, Step
from flatout_agent.watch.tensors import peak_bytes
from flatout_agent.wire import pulse as layout

if TYPE_CHECKING:
    from flatout_agent.job import Job


REPORT_AFTER_STEPS = 20
"""Steps after which every boost has taken hold or has given up."""

APART = 16
"""Memory is read again after a 16th of the steps so far: about 180 times in a million steps."""
TENSORS = 4
"""The number of tensors of a batch that are counted."""


class StepHistory:
    """Memory after some of the steps, and the size of the last batch and of the largest before."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.due = 1
        """The step after which memory is read again."""
        self._read: Callable[[], int | None] | None = None
        self._steps: list[int] = []
        self._bytes: list[int] = []
        self._last: int | None = None
        self._most: int | None = None
        self._number: int | None = None
        self._loader: torch.utils.data.DataLoader[Any] | None = None

    def epoch(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        """An epoch of a loader begins."""
        self._loader, self._number = loader, -1

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any) -> None:
        """A loader has given a batch."""
        if self._last is not None and (self._most is None or self._last > self._most):
            self._most = self._last
        self._last = _elements(batch)
        if loader is not self._loader:  # an evaluation came in between
            self._loader, self._number = loader, None
        elif self._number is not None:
            self._number += 1

    def step(self) -> None:
        """A step has ended after which memory is due."""
        steps = self._job.steps
        self.due = steps + max(1, steps // APART)
        if self._read is None:
            self._read = resident_bytes
            if self._job.device == "cuda":
                self._read = partial(allocated_bytes, self._job.first_device)
        value = self._read()
        if value is not None:
            self._steps.append(steps)
            self._bytes.append(value)

    def seen(self) -> wire.HistorySeen:
        """The record of it."""
        loader = self._loader
        return wire.HistorySeen(
            steps=tuple(self._steps),
            memory_bytes=tuple(self._bytes),
            device=self._job.device,
            batch_elements=self._last,
            most_elements=self._most,
            batch=self._number,
            batch_size=loader.batch_size if loader is not None else None,
            in_order=type(getattr(loader, "sampler", None)) is torch.utils.data.SequentialSampler,
        )


class RunWatch(Watcher):
    """Samples are those of the loader that feeds the training calls. Without one, they are those of
    the model's first inputs, assumed to stay the same.
    """

    quiet = True

    def __init__(self, job: Job, booster: Booster, recorder: Recorder) -> None:
        self.job = job
        self.booster = booster
        self.recorder = recorder
        self.record = LoopRecord()
        self.counter = self.record
        self.history: StepHistory | None = StepHistory(job)
        """For the report of a crash, or None if nobody reads one."""
        self.last_step = Step()
        self._last_loader: torch.utils.data.DataLoader[Any] | None = None
        self.samples = 0
        self.wait_s = 0.0
        self.began: float | None = None
        self.ended = 0.0
        self._samples_at_start = 0
        self._wait_at_start = 0.0
        self._usual_samples = 0
        self._counted_to = 0
        """The step up to which samples are counted."""
        self._report_at = REPORT_AFTER_STEPS
        self.beat: Beat | None = None
        """Feeds the pulse, if one is wanted."""

    @property
    def loss_seen(self) -> Callable[[torch.Tensor], None] | None:  # type: ignore[override]
        return self.beat.loss_seen if self.beat is not None else None

    def epoch_begins(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        if self.history is not None:
            self.history.epoch(loader)
        if self.beat is not None and loader is self.record.training_loader:
            self.beat.flag(layout.EPOCH_BEGAN)

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any, wait_s: float) -> Any:
        self._last_loader = loader
        if self.history is not None:
            self.history.batch(loader, batch)
        if self.record.training_loader is None or loader is self.record.training_loader:
            self.record.batch(loader, batch, wait_s)
            if self.beat is not None:
                self.beat.batch_seen(batch)
        elif self.beat is not None:
            self.beat.flag(layout.EVALUATED)
        return batch

    def backward(self, loss: torch.Tensor) -> None:
        if self.beat is not None:
            self.beat.loss_seen(loss)

    def model_found(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._report_at = self.job.steps + REPORT_AFTER_STEPS

    def training_call(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        lead = not self.job.steps and next(iter(self.job.models)) is model
        self.record.last_loader = self._last_loader
        self.record.training_call(args, kwargs, lead)

    def start_over(self) -> None:
        self.record.start_over()

    def step(self) -> None:
        now = time.perf_counter()
        if self.history is not None and self.job.steps >= self.history.due:
            self.history.step()
        self._count(now)
        self.ended = now
        if self.beat is not None:
            self.beat.step(self.last_step, now, self.record.training_loader)
        if self.began is None:
            self.began = now
            self._samples_at_start, self._wait_at_start = self.samples, self.wait_s
        if self.job.steps >= self._report_at and self.booster.applied:
            self._report_at = 2 * self.job.steps
            self.booster.report(final=False)

    def _count(self, now: float) -> None:
        """Count the samples and the waiting of the last step, and of those before it that were not
        told.
        """
        steps, self._counted_to = self.job.steps - self._counted_to, self.job.steps
        step = self.last_step = self.record.step(now, at_call=self.job.by_hand)
        if self.record.training_loader is None:
            self._usual_samples = step.samples or self._usual_samples
            step.samples = steps * self._usual_samples
        elif not step.samples:  # programs may make another loader for each epoch
            self.record.training_loader = self.record.last_loader = self._last_loader
            if self.beat is not None:
                self.beat.other_loader()
        self.samples += step.samples
        self.wait_s += step.wait_s

    def program_ends(self) -> None:
        if self.beat is not None:
            self.beat.end()
        self.booster.report()
        recompiles, graph_breaks = compile_counters()
        if self.history is not None and tracebacks.ending() is not None:
            self.recorder.safely("history", self._write_history, self.history)
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
                backwards=self.job.backwards,
                data_parallel=max(map(spread, self.job.models), default=0),
                children=children_started(),
            )
        )

    def _write_history(self, history: StepHistory) -> None:
        self.recorder.write(history.seen())

    def end_at_once(self) -> None:
        """End the program, as the answer that it was started for exists."""
        from flatout_agent.watch.ending import end_process

        RunWatch.program_ends(self)
        end_process(self.recorder)


def spread(model: torch.nn.Module) -> int:
    """The number of devices that `nn.DataParallel` spreads this model over, or 0 if it is not
    spread.
    """
    devices = getattr(model, "device_ids", None) or ()
    parallel = isinstance(model, torch.nn.DataParallel) and len(devices) > 1
    return len(devices) if parallel else 0


def compile_counters() -> tuple[int, int]:
    """(recompilations, graph breaks) counted by torch.compile; zeros if it was never used."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return 0, 0  # nothing is imported at a Ctrl-C, or Python would forget how it ends
    from flatout_agent.speedups import compiling

    return compiling.counters()


def _elements(batch: Any) -> int:
    """Elements of the first few tensors, not those deeper than one level."""
    if isinstance(batch, torch.Tensor):
        return batch.numel()
    members: Iterable[Any] = ()
    if isinstance(batch, (list, tuple)):
        members = batch
    elif isinstance(batch, Mapping):
        members = batch.values()
    counted = elements = 0
    for member in members:  # in each step of a run: without a list and a generator
        if isinstance(member, torch.Tensor) and counted < TENSORS:
            counted += 1
            elements += member.numel()
    return elements
