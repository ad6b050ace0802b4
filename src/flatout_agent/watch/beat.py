"""Feeds the pulse at each step: the loss, without waiting for it, and events.

Every part may fail on an unusual program; the pulse then ends, and the run goes on.

A large model empties the CPU caches between two steps, so the cost per step depends on how much
code and how many objects are touched here. The code of each step is therefore written out in
`batch_seen`, `loss_seen` and `step`, and makes no calls for absent features.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.attach.replacing import in_reverse, replaced
from flatout_agent.job import Job
from flatout_agent.tell.pulse import UNKNOWN, Pulse
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch.interruptions import watch_saving
from flatout_agent.watch.loop_record import Step
from flatout_agent.watch.tensors import tensors_in
from flatout_agent.watch.unscaled import UnscaledLosses
from flatout_agent.wire.pulse import COMPILED, EPOCH_BEGAN, EVALUATED, LOSS_READ, SAVED, SKIPPED

READ_EVERY_S = 1.0
"""Seconds between copies of a loss on a device, made while the device works."""


of_process: Beat | None = None
"""The instance of this process, for code that knows of steps what no hook shows."""


class DeviceLoss:
    """The loss of a backward pass on a CUDA device; it is copied and available a moment later."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self._event: Any = None
        self._under_way = False
        self._next_s = 0.0

    def see(self, loss: torch.Tensor) -> None:
        """`backward` is about to run on this tensor."""
        now = time.perf_counter()
        if self._under_way or now < self._next_s or torch.cuda.is_current_stream_capturing():
            return
        self._next_s = now + READ_EVERY_S
        if self._buffer is None:
            self._buffer = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._buffer.copy_(loss.detach().reshape(()), non_blocking=True)
        self._event.record(torch.cuda.current_stream(loss.device))
        self._under_way = True

    def take(self) -> float | None:
        """The loss, returned once, or None if there is none."""
        if self._buffer is None or not self._under_way:
            return None
        if torch.cuda.is_current_stream_capturing() or not self._event.query():
            return None
        self._under_way = False
        return float(self._buffer)


class Beat:
    """Feeds one pulse from what a watcher sees."""

    def __init__(self, pulse: Pulse, job: Job, recorder: Recorder) -> None:
        self.pulse = pulse
        self.job = job
        self._loss: float | None = None
        """The loss of this step's last backward pass, or None if not read."""
        self._device_loss: DeviceLoss | None = None
        self._recorder = recorder
        self._over = False
        self._known = False
        self._graphs = 0
        self._counters: Any = None
        """The counters of torch.compile, once torch has loaded it."""
        self._one_of_several = pulse.world_size > 1
        """Whether there are other ranks."""
        self._whole_batches = pulse.world_size if wire.RANK_ENV in os.environ else 1
        """The number of ranks that each count the same batch as a whole; they are shown
        together."""
        self._samples = 0
        """The samples of a usual step, used for the first step of a new loader, which does not
        count its own."""
        self._scaler: Any = None
        self._shapes = 0
        """A number for the shapes of this step's batches."""
        self._usual_shapes = 0
        self._backwards = 0
        """Backward passes of this step."""
        self._backward_s = 0.0
        """When the last backward pass began, or 0.0 if nobody waits for other ranks in it."""
        self._last_s = 0.0
        """When the last step ended."""
        self._unscaled = UnscaledLosses()
        self._undo = in_reverse(
            [
                watch_saving(self._saved, self._written),
                self._watch_scaler(),
                self._unscaled.close,
            ]
        )

    def _own_samples(self, samples: int) -> int:
        """The share of this rank: the samples of all ranks together are those of the batch."""
        ranks = self._whole_batches
        return samples // ranks + (self.pulse.rank < samples % ranks)

    def flag(self, flag: int) -> None:
        """Something happened since the last step."""
        self.pulse.flags |= flag

    def other_loader(self) -> None:
        """The batches came from another training loader: an epoch began, and nothing
        was evaluated.
        """
        self.pulse.flags = self.pulse.flags & ~EVALUATED | EPOCH_BEGAN

    def batch_seen(self, batch: Any) -> None:
        """The loader has given a batch. The inputs of models are not seen in every step."""
        if self._over:
            return
        try:
            first = batch[0] if type(batch) in (list, tuple) and batch else batch
            if type(first) is not torch.Tensor:  # the quick path nearly always suffices
                first = next(tensors_in(batch), None)
            self._shapes = hash((self._shapes, None if first is None else first.shape))
        except Exception as error:
            self._fail(error)

    def loss_seen(self, loss: torch.Tensor) -> None:
        """`backward` is about to run on this tensor."""
        if self._over:
            return
        self._backwards += 1
        if self._one_of_several:
            self._backward_s = time.perf_counter()
        try:
            if loss.numel() != 1:
                return
            if self._unscaled.last is not None:
                loss = self._unscaled.of(loss)
            if loss.is_cpu:
                self._loss = loss.item()  # one operator; `float(loss.detach())` would be two
            elif loss.is_cuda:
                if self._device_loss is None:
                    self._device_loss = DeviceLoss()
                self._device_loss.see(loss)
        except Exception as error:
            self._fail(error)

    def step(self, step: Step, now: float, loader: Any) -> None:
        """A step has ended. loader: the one that feeds the training, if there is one."""
        if self._over:
            return
        try:
            pulse = self.pulse
            if pulse.forked or not self._known:
                pulse = self._begin(loader)
            loss, self._loss = self._loss, None
            if self._device_loss is not None and loss is None:
                loss = self._device_loss.take()
            if loss is not None:
                pulse.flags |= LOSS_READ
            if self._counters is None:
                dynamo = sys.modules.get("torch._dynamo.utils")
                self._counters = getattr(dynamo, "counters", None)
            if self._counters is not None:
                graphs = self._counters["stats"].get("unique_graphs", 0)
                if graphs != self._graphs:
                    self._graphs = graphs
                    pulse.flags |= COMPILED
            if step.samples:
                self._samples = self._own_samples(step.samples)
            if self._shapes:
                self._usual_shapes, self._shapes = self._shapes, 0
            pulse.step(
                self.job.steps,
                now,
                step.wait_s,
                self._samples,
                UNKNOWN if loss is None else loss,
                self._backwards or 1,
                UNKNOWN if self._scaler is None else self._scale(),
                self._usual_shapes,
                self._own_s() if self._one_of_several else UNKNOWN,
            )
            self._backwards, self._last_s = 0, now
        except Exception as error:
            self._fail(error)

    def end(self) -> None:
        """The program ends."""
        self._guarded(self.pulse.end)

    def _begin(self, loader: Any) -> Pulse:
        """Tell the pulse what trains: at the first step, and in a fork that goes on training."""
        if self.pulse.forked:
            self.pulse = Pulse(self.pulse.folder)
        self._known = True
        workers = -1 if loader is None else getattr(loader, "num_workers", -1)
        self.pulse.trains_on(self.job.device, workers)
        return self.pulse

    def _own_s(self) -> float:
        """Seconds of the step before its only backward pass began."""
        began, self._backward_s = self._backward_s, 0.0
        return began - self._last_s if began and self._last_s and self._backwards == 1 else UNKNOWN

    def _saved(self) -> None:
        self.pulse.flags |= SAVED

    def _written(self, file: Any) -> None:
        if not self._over:
            self._guarded(self._size_of, file)

    def _size_of(self, file: Any) -> None:
        with suppress(OSError, TypeError, ValueError, AttributeError):
            is_path = isinstance(file, (str, os.PathLike))
            self.pulse.has_saved(os.path.getsize(file) if is_path else file.tell())  # noqa: PTH202

    def _watch_scaler(self) -> Callable[[], None]:
        """Count steps that a gradient scaler skips: if gradients are not finite, it calls no
        optimizer.
        """
        # torch before 2.3 has the class for CUDA only; today the two are one.
        scalers: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        original = scalers.step
        beat = self

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = beat.job.steps
            result = original(scaler, optimizer, *args, **kwargs)
            beat._guarded(beat._scaled, scaler, before)
            return result

        return replaced(scalers, "step", step)

    def _scaled(self, scaler: Any, before: int) -> None:
        if self._over or not scaler.is_enabled():
            return
        self._scaler = scaler
        if self.job.steps == before and before and len(self.job.optimizers) == 1:
            self.pulse.flags |= SKIPPED
            self.pulse.step(before, time.perf_counter(), loss_scale=self._scale())

    def _scale(self) -> float:
        """The scale of the gradient scaler, if it can be read without waiting."""
        scale = getattr(self._scaler, "_scale", None)
        return float(scale) if scale is not None and scale.device.type == "cpu" else UNKNOWN

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        try:
            action(*args)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """An error of ours ends only the pulse."""
        self._recorder.fault("pulse", error)
        self._over = True
        self._undo()
