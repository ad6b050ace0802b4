"""What is seen of the loop from inside while a program is profiled: step by step, then in sum."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flatout_agent import wire
from flatout_agent.chain import Depth, compiled_by_user
from flatout_agent.job import Job, Seen
from flatout_agent.job_facts import JobNotes
from flatout_agent.recorder import Recorder
from flatout_agent.watch import places
from flatout_agent.watch.calls import Calls
from flatout_agent.watch.profile import compile
from flatout_agent.watch.profile.graphs import Forwards, Losses
from flatout_agent.watch.profile.loader import LoaderStarts
from flatout_agent.watch.tensors import samples_in, tensors_in

Undo = Callable[[], None]


@dataclass
class Step:
    """One step so far; seconds. `epoch`: a loader was started in it."""

    wall_s: float = 0.0
    wait_s: float = 0.0
    eval_s: float = 0.0
    samples: int = 0
    micro_steps: int = 0
    epoch: bool = False

    @property
    def train_s(self) -> float:
        return max(0.0, self.wall_s - self.eval_s)


class LoopNotes:
    """Follows batches, model calls, losses and steps; `window` while graphs are marked as well."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        self.job = job
        self.torch = job.torch
        self.recorder = recorder
        self._scale = self.torch.amp.GradScaler.scale
        self.notes = JobNotes(self.torch)
        self.calls = Calls(self.torch)
        self.loaders = LoaderStarts(self.torch, self.calls)
        self.losses = Losses()
        self.forwards = Forwards(self.torch)
        self.window = False
        self.on_cuda = False
        self.steps: list[Step] = []
        self.places: dict[str, str | None] = {}
        self.loss_at: tuple[str, int] | None = None
        self.anomaly = False
        self.batch_pinned: bool | None = None
        self.training_loader: Any = None
        self._last_loader: Any = None
        self._waited_s = 0.0
        self._samples = 0
        self._now = Step()
        self._last: float | None = None
        self._eval_began: float | None = None
        self._eval_ended = 0.0
        self._eval_with_grad = False
        self._undo: list[Undo] = []
        self._begun = 0
        self._micro_before = 0
        self.watched: Seen[Any] = Seen()
        """Root models whose every call is seen."""

    def batch(self, loader: Any, batch: Any, wait_s: float) -> None:
        """A loader has given a batch."""
        if self._last is None:
            self._last = time.perf_counter() - wait_s
        self._last_loader = loader
        self.loaders.batch(loader)
        self._waited_s += wait_s
        self._samples += samples_in(self.torch, batch)
        if self.window and self.batch_pinned is None and self.on_cuda:
            first = next(tensors_in(self.torch, batch), None)
            if first is not None and first.device.type == "cpu":
                self.batch_pinned = bool(first.is_pinned())

    def _batches_train(self) -> None:
        """What the loader has given is for training: an evaluation would have been seen."""
        self._now.wait_s += self._waited_s
        self._now.samples += self._samples
        self._waited_s, self._samples = 0.0, 0
        if self._last_loader is not None:
            self.training_loader = self._last_loader
            self.loaders.trains(self._last_loader)

    def model_found(self, model: Any) -> None:
        """A root model is about to be called: watch its calls, unless that were compiled anew."""
        self.notes.model(model)
        compiled = type(model).__name__ == "OptimizedModule" or compiled_by_user(model)
        if compiled or not compile.in_use():
            number = self.job.models.index(model)
            self.watched.append(model)
            watch = self._watching(model, number, compiled)
            self._undo.append(self.job.wrap_call(model, Depth.WATCH, watch))

    def _watching(
        self, model: Any, number: int, compiled: bool
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def layer(call: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*args: Any, **kwargs: Any) -> Any:
                training = model.training and self.torch.is_grad_enabled()
                safely = self.recorder.safely
                if not training:
                    safely("evaluation", self._evaluation_begins)
                    output = call(*args, **kwargs)
                    safely("evaluation", self._evaluated, output)
                    return output
                safely("training call", self.training_begins, number, args, kwargs)
                output = call(*args, **kwargs)
                if self.window and not compiled:
                    safely("training call", self.forwards.called, output, self.job.steps)
                return output

            return watched

        return layer

    def training_begins(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A root model is about to be called in training."""
        now = time.perf_counter()
        if self._last is None:
            self._last = now
        self._batches_train()
        self._place("model")
        if self._eval_began is not None:
            self._now.eval_s += self._eval_ended - self._eval_began
            self._eval_began = None
            self.notes.eval_with_grad = self.notes.eval_with_grad or self._eval_with_grad
            self._eval_with_grad = False
        first = next(tensors_in(self.torch, (args, kwargs)), None)
        if first is not None:
            self.notes.inputs(number, tuple(first.shape))
            if number == 0 and self.training_loader is None:
                self._now.samples += int(first.shape[0]) if first.dim() else 0

    def _evaluation_begins(self) -> None:
        self.notes.eval_seen = True
        self._waited_s, self._samples = 0.0, 0
        self._last_loader = None
        self._place("eval")
        if self._eval_began is None:
            self._eval_began = time.perf_counter()

    def _evaluated(self, output: Any) -> None:
        self._eval_ended = time.perf_counter()
        if any(tensor.requires_grad for tensor in tensors_in(self.torch, output)):
            self._eval_with_grad = True

    def backward(self, loss: Any) -> None:
        """`backward` is about to run on this tensor."""
        self._eval_with_grad = False  # a loss in evaluation mode that is trained on
        self._now.micro_steps += 1
        self.anomaly = self.anomaly or bool(self.torch.is_anomaly_enabled())
        frame = self._place("backward")
        if frame is not None:
            self.loss_at = frame.f_code.co_filename, frame.f_lineno
        if self.window:
            self.losses.saw(loss, self.job.steps)

    def optimizer_starts(self) -> None:
        """`optimizer.step` begins."""
        self._micro_before = self._now.micro_steps
        self._place("optimizer")

    def optimizer_ends(self, optimizer: Any) -> None:
        """`optimizer.step` has ended."""
        if len(self.notes.optimizers) < len(self.job.optimizers):
            self.notes.optimizer(optimizer, self._now.micro_steps > self._micro_before)

    def _place(self, what: str) -> Any:
        """Note where the program is, the first time; returns that frame then."""
        if what in self.places:
            return None
        frame = places.user_frame(sys._getframe(1))
        self.places[what] = places.told(frame) if frame is not None else None
        return frame

    def step(self, now: float) -> Step:
        """One step has ended."""
        self._batches_train()
        step, self._now = self._now, Step()
        step.wall_s = now - (self._last if self._last is not None else now)
        step.epoch = self.loaders.begun != self._begun
        self._begun = self.loaders.begun
        self.steps.append(step)
        return step

    def goes_on(self) -> None:
        """The next step begins now: what flatout has done since the last one is not its time."""
        self._last = time.perf_counter()

    def buffered(self) -> int:
        """Batches that loader workers may have ready: the steps that they make look fast."""
        loader = self.training_loader
        return 0 if loader is None else loader.num_workers * (loader.prefetch_factor or 0)

    def room_for(self, steps: int) -> bool:
        """Whether the loader's pass goes on for so many steps, or is always shorter than that.

        A loader that starts would take up more of a few recorded steps than of the whole run.
        """
        left = self.loaders.left(self.training_loader) if self.training_loader is not None else None
        if left is None:
            return True
        needed = steps * max(1, self.steps[-1].micro_steps)
        return left[0] >= needed or left[1] < 2 * needed

    def facts(self, step_s: float | None, wait_share: float | None) -> wire.JobFacts:
        """The job as seen so far."""
        micro = [step.micro_steps for step in self.steps]
        mean = sum(micro) / len(micro) if micro else 1.0
        return self.notes.facts(max(1.0, mean), step_s, wait_share)

    def remove(self) -> None:
        """Take out everything."""
        self.window = False
        self.calls.remove()
        self.forwards.remove()
        for undo in self._undo:
            undo()
        self._undo = []
        self.torch.amp.GradScaler.scale = self._scale
        self.training_loader = self._last_loader = None
        self.loaders.remove()
