"""Measure the memory of a program's steps at two batch sizes, then stop it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from flatout_agent import overlay, wire
from flatout_agent.attach.chain import Depth
from flatout_agent.job import Job
from flatout_agent.speedups import nests
from flatout_agent.speedups.step_memory import StepMemory
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import Watcher
from flatout_agent.watch.ending import children_started, end_process
from flatout_agent.watch.profile.modes import StepMode
from flatout_agent.watch.tensors import samples_in, tensors_in
from flatout_agent.watch.training_calls import is_of_training

PARTS = (4, 4, 2, 2)
"""The part of its batch that each step gets; the first step of a size creates what later ones
reuse."""
FEWEST_ROWS = 2
"""Batch normalisation cannot train on one sample."""


class MemoryWatch(Watcher):
    """Receives every call of discovery to the end, as there are only four steps."""

    light = False

    def __init__(self, job: Job, recorder: Recorder, orders: wire.MemoryOrders) -> None:
        self.job = job
        self.recorder = recorder
        self.orders = orders
        self.memory: StepMemory | None = None
        self.batch_rows = 0
        self._cut = False
        """Whether some batch was cut."""
        self._begun = False
        self._backwards = 0
        self._began = time.perf_counter()
        self._over = False

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any, wait_s: float) -> Any:
        rows = samples_in(batch)
        self.batch_rows = max(self.batch_rows, rows)
        part = PARTS[min(self.job.steps, len(PARTS) - 1)]
        if not self.orders.cut or rows < 2 * FEWEST_ROWS:
            return batch
        self._cut = True
        return first_rows(batch, rows, max(FEWEST_ROWS, rows // part))

    def model_found(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self.memory is None:
            self.memory = StepMemory(self.job.device)
            _Outputs(self.memory, self.recorder).enter()
            for tensor in tensors_in((args, kwargs)):
                self.memory.tensors.see(tensor)
        self.memory.add_model(model)
        self.job.wrap_call(model, Depth.WATCH, lambda call: self._watched(model, call))

    def _watched(self, model: torch.nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if is_of_training(model, args, kwargs):
                self.recorder.safely("training call", self._called, args, kwargs)
            return call(*args, **kwargs)

        return watched

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        memory = self.memory
        if memory is None:
            return
        if not self._begun:
            self._begun = True
            rows = samples_in((args, kwargs)) or 1
            if not self._cut:
                self.batch_rows = max(self.batch_rows, rows)
            memory.begin(rows)
        memory.call()

    def backward(self, loss: torch.Tensor) -> None:
        self._backwards += 1

    def optimizer_starts(self, optimizer: torch.optim.Optimizer) -> None:
        if self.memory is not None:
            self.memory.update_begins()

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        if self.memory is not None:
            self.memory.update_ends(optimizer)

    def step(self) -> None:
        if self._over or self.memory is None:
            return
        number = self.job.steps
        if number == 1:
            self.recorder.safely("overlay", overlay.mark_first_step)
            if self.job.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
        else:
            self.memory.end()
        self._begun = False
        now = time.perf_counter()
        step = wire.StepTaken(number - 1, "window", now - self._began, samples=self.batch_rows)
        self.recorder.write(step)
        self._began = now
        if number >= (len(PARTS) if self._cut else len(PARTS) - 1):
            self._write_end("window")
            end_process(self.recorder)

    def program_ends(self) -> None:
        if not self._over:
            self._write_end("program")

    def _write_end(self, reason: wire.EndReason) -> None:
        self._over = True
        steps = max(1, self.job.steps)
        if self.memory is not None and self.memory.points:
            seen = self.memory.seen(
                list(self.job.optimizers),
                self.batch_rows,
                self._backwards / steps,
                int(torch.cuda.max_memory_allocated()) if self.job.device == "cuda" else None,
            )
            self.recorder.write(seen)
        ended = wire.Ended(
            reason,
            self.job.steps,
            samples=0,
            train_s=0.0,
            wait_s=0.0,
            backwards=self.job.backwards,
            children=children_started(),
        )
        self.recorder.write(ended)


class _Outputs(StepMode):  # type: ignore[no-untyped-call]  # torch's own
    """Passes every operator's output to the accounts."""

    def __init__(self, memory: StepMemory, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._tensors = memory.tensors
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self._recorder.safely("memory", self._see, output)
        return output

    def _see(self, output: Any) -> None:
        for tensor in tensors_in(output):
            self._tensors.see(tensor)


def first_rows(batch: Any, rows: int, keep: int) -> Any:
    """The first `keep` samples of a batch of `rows` samples: of its tensors, and of lists of that
    length.
    """

    def of_rows(value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return True
        if type(value) is not list or len(value) != rows:
            return False
        return not any(isinstance(member, torch.Tensor) for member in value)

    def cut(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            longer = value.dim() > 0 and value.shape[0] == rows
            return value[:keep].clone() if longer else value
        return value[:keep]

    return nests.change(batch, cut, of_rows)
