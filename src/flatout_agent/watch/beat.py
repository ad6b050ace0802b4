"""What a watcher tells the pulse of each step: the loss without waiting for it, and what happened.

Every part may fail on an unusual program; the pulse then ends, and the run goes on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from flatout_agent.job import Job
from flatout_agent.pulse import UNKNOWN, Pulse
from flatout_agent.recorder import Recorder
from flatout_agent.replacing import in_reverse, replaced
from flatout_agent.watch.interruptions import watch_saving
from flatout_agent.watch.loop_record import Step
from flatout_agent.watch.tensors import tensors_in
from flatout_agent.wire import pulse as layout

READ_EVERY_S = 1.0
"""A loss on a device is copied so often, beside what the device does."""


class LossReader:
    """The loss of the last backward pass: at once on a CPU, a moment later from a device."""

    def __init__(self) -> None:
        self.value: float | None = None
        """Read and not yet told."""
        self._buffer: torch.Tensor | None = None
        self._event: Any = None
        self._under_way = False
        self._next_s = 0.0

    def see(self, loss: torch.Tensor) -> None:
        """`backward` is about to run on this tensor."""
        if loss.numel() != 1:
            return
        if loss.device.type == "cpu":
            self.value = float(loss.detach())
        elif loss.device.type == "cuda":
            self._copy(loss)

    def take(self) -> float | None:
        """The loss, once; None: there is none."""
        if self._under_way and self._event.query():
            self._under_way = False
            assert self._buffer is not None
            self.value = float(self._buffer)
        value, self.value = self.value, None
        return value

    def _copy(self, loss: torch.Tensor) -> None:
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


class Beat:
    """Feeds one pulse from what a watcher sees."""

    def __init__(self, pulse: Pulse, job: Job, recorder: Recorder) -> None:
        self.pulse = pulse
        self.job = job
        self.loss = LossReader()
        self._recorder = recorder
        self._over = False
        self._known = False
        self._graphs = 0
        self._samples = 0
        """Of a usual step: the first one of a new loader does not count its own."""
        self._scaler: Any = None
        self._steps_of_scaler = 0
        self._shapes = 0
        """Of this step's batches."""
        self._usual_shapes = 0
        self._backwards = 0
        """Backward passes of this step."""
        self._backward_s = 0.0
        """When the backward pass seen last began; 0.0: nobody waits for other ranks in one."""
        self._last_s = 0.0
        """When the last step ended."""
        self._undo = in_reverse([watch_saving(self._saved, self._written), self._watch_scaler()])

    def flag(self, flag: int) -> None:
        """Something happened since the last step."""
        self.pulse.flags |= flag

    def other_loader(self) -> None:
        """The batches were another training loader's: an epoch began, and nothing was evaluated."""
        self.pulse.flags = self.pulse.flags & ~layout.EVALUATED | layout.EPOCH_BEGAN

    def batch_seen(self, batch: Any) -> None:
        """The loader has given a batch. What models are called with is not seen in every step."""
        if not self._over:
            self._guarded(self._batch_seen, batch)

    def _batch_seen(self, batch: Any) -> None:
        first = batch[0] if type(batch) in (list, tuple) and batch else batch
        if type(first) is not torch.Tensor:  # the quick way serves nearly always
            first = next(tensors_in(batch), None)
        self._shapes = hash((self._shapes, None if first is None else first.shape))

    def loss_seen(self, loss: torch.Tensor) -> None:
        """`backward` is about to run on this tensor."""
        if not self._over:
            self._backwards += 1
            if self.pulse.world_size > 1:
                self._backward_s = time.perf_counter()
            self._guarded(self.loss.see, loss)

    def step(self, step: Step, now: float, loader: Any) -> None:
        """A step has ended. loader: the one that feeds the training, if there is one."""
        if not self._over:
            self._guarded(self._step, step, now, loader)

    def end(self) -> None:
        """The program ends."""
        self._guarded(self.pulse.end)

    def _step(self, step: Step, now: float, loader: Any) -> None:
        if self.pulse.forked:  # and it goes on training
            self.pulse, self._known = Pulse(self.pulse.folder), False
        if not self._known:
            self._known = True
            workers = -1 if loader is None else getattr(loader, "num_workers", -1)
            self.pulse.trains_on(self.job.device, workers)
        loss = self.loss.take()
        if loss is not None:
            self.pulse.flags |= layout.LOSS_READ
        if step.epoch:
            self.pulse.flags |= layout.EPOCH_BEGAN
        if self._compiled():
            self.pulse.flags |= layout.COMPILED
        self._samples = step.samples or self._samples
        self._usual_shapes = self._shapes or self._usual_shapes
        self.pulse.step(
            self.job.steps,
            now,
            step.wait_s,
            self._samples,
            UNKNOWN if loss is None else loss,
            max(1, self._backwards),
            self._scale(),
            self._usual_shapes,
            self._own_s(),
        )
        self._shapes, self._backwards, self._backward_s, self._last_s = 0, 0, 0.0, now

    def _own_s(self) -> float:
        """The step until its only backward pass began."""
        if not (self._backward_s and self._last_s) or self._backwards != 1:
            return UNKNOWN
        return self._backward_s - self._last_s

    def _compiled(self) -> bool:
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            return False
        graphs = utils.counters["stats"]["unique_graphs"]
        before, self._graphs = self._graphs, graphs
        return bool(graphs != before)

    def _saved(self) -> None:
        self.pulse.flags |= layout.SAVED

    def _written(self, file: Any) -> None:
        if not self._over:
            self._guarded(self._size_of, file)

    def _size_of(self, file: Any) -> None:
        with suppress(OSError, TypeError, ValueError, AttributeError):
            is_path = isinstance(file, (str, os.PathLike))
            self.pulse.has_saved(os.path.getsize(file) if is_path else file.tell())  # noqa: PTH202

    def _watch_scaler(self) -> Callable[[], None]:
        """A gradient scaler calls no optimizer where gradients are not finite: no step is seen."""
        # torch before 2.3 has the class for CUDA alone; the two are one today.
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
            self.pulse.flags |= layout.SKIPPED
            self.pulse.step(before, time.perf_counter(), loss_scale=self._scale())

    def _scale(self) -> float:
        """Of the gradient scaler, where reading it waits for nothing."""
        scale = getattr(self._scaler, "_scale", None)
        return float(scale) if scale is not None and scale.device.type == "cpu" else UNKNOWN

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        """An error of ours ends the pulse, and nothing else."""
        try:
            action(*args)
        except Exception as error:
            self._recorder.fault("pulse", error)
            self._stop()

    def _stop(self) -> None:
        self._over = True
        self._undo()
