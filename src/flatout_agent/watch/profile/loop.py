"""The loop as seen from inside while a program is profiled, step by step and summed up."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.attach.chain import Depth, compiled_by_user
from flatout_agent.attach.replacing import Undo
from flatout_agent.job import Job, WeakList
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import places
from flatout_agent.watch.calls import Calls
from flatout_agent.watch.job_facts import JobNotes
from flatout_agent.watch.loop_record import LoopRecord, Step
from flatout_agent.watch.profile import compile
from flatout_agent.watch.profile.loader import LoaderStarts
from flatout_agent.watch.profile.modes import without_modes
from flatout_agent.watch.profile.storages import past_overrides
from flatout_agent.watch.training_calls import is_frozen, is_of_training

STACK = 8
"""The user's functions, from a call outwards."""

LOSS_MARK = "flatout"
PRESENT = 2
"""The last steps' losses may still be alive, held by variables of the loop."""


class _Mark:
    """A mark that dies with the node whose metadata holds it."""


class KeptLosses:
    """Whether the losses of past steps hold their graphs."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, weakref.ref[_Mark]]] = []

    def saw(self, loss: torch.Tensor, step: int) -> None:
        """`backward` is about to run on this tensor."""
        node = loss.grad_fn
        if node is not None:
            mark = _Mark()
            metadata: Any = node.metadata  # a property, to torch's types a method
            metadata[LOSS_MARK] = mark
            self._marks.append((step, weakref.ref(mark)))

    def kept(self, step: int) -> bool:
        """Whether most of the losses from before the last steps are alive."""
        past = [mark for at, mark in self._marks if at < step - PRESENT]
        alive = sum(mark() is not None for mark in past)
        return len(past) > PRESENT and alive > len(past) / 2


@dataclass(frozen=True)
class CallSite:
    """A line of a function that is being executed."""

    path: str
    line: int
    function: str


class LoopNotes:
    """Follows batches, model calls, losses and steps; `window` while graphs are marked as well."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        self.job = job
        self.recorder = recorder
        self.notes = JobNotes()
        self.calls = Calls()
        self.loaders = LoaderStarts(self.calls)
        self.losses = KeptLosses()
        self.window = False
        self.steps: list[Step] = []
        self.places: dict[str, str | None] = {}
        self.loss_at: list[CallSite] = []
        """The user's lines where `backward` was first called, innermost first."""
        self.eval_at: list[CallSite] = []
        """The same for the first evaluation of a trained model after that."""
        self.tested = False
        """Whether a model that is trained was evaluated."""
        self._trained: dict[tuple[int, int], bool] = {}
        self.anomaly = False
        self.record = LoopRecord()
        self._undo: list[Undo] = []
        self._begun = 0
        self.watched: WeakList[torch.nn.Module] = WeakList()
        """Root models all of whose calls are seen."""

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any, wait_s: float) -> None:
        """A loader has given a batch."""
        self.record.batch(loader, batch, wait_s)
        self.loaders.batch(loader)

    def _batches_train(self) -> None:
        """The loader's batch is for training."""
        if self.record.last_loader is not None:
            self.loaders.trains(self.record.last_loader)

    def model_found(self, model: torch.nn.Module) -> None:
        """A root model is about to be called: watch its calls, unless it would then
        be recompiled.
        """
        self.notes.model(model)
        compiled = type(model).__name__ == "OptimizedModule" or compiled_by_user(model)
        if compiled or not compile.in_use():
            number = self.job.models.index(model)
            self.watched.append(model)
            watch = self._watching(model, number)
            self._undo.append(self.job.wrap_call(model, Depth.WATCH, watch))

    def _watching(
        self, model: torch.nn.Module, number: int
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def layer(call: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*args: Any, **kwargs: Any) -> Any:
                safely = self.recorder.safely
                if not is_of_training(model, args, kwargs):
                    if is_frozen(model):
                        return call(*args, **kwargs)
                    evaluates = safely("evaluation", self._evaluates, model, number, args, kwargs)
                    output = call(*args, **kwargs)
                    if evaluates:
                        safely("evaluation", self.record.evaluated, output)
                    return output
                safely("training call", self.training_begins, number, args, kwargs)
                return call(*args, **kwargs)

            return watched

        return layer

    def training_begins(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A root model is about to be called in training."""
        self._batches_train()
        self._place("model")
        shape = self.record.training_call(args, kwargs, lead=number == 0)
        if shape is not None:
            self.notes.inputs(number, shape)
            with without_modes(), past_overrides():
                self.notes.padding(number, args, kwargs)

    def _evaluates(
        self, model: torch.nn.Module, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """A root model is about to be called outside training; returns whether that is an
        evaluation.
        """
        if self.loaders.begun != self._begun:
            self.record.loader_starts()
        with self.calls.paused():
            evaluates = self.record.evaluates(model, args, kwargs)
        if not evaluates:
            if "eval" in self.places and self.places["eval"] == places.where():
                del self.places["eval"]  # until it was known to come back in each step
            return False
        self._place("eval")
        if not model.training and self._is_trained(model, number):
            self.record.current.tested = self.tested = True
            if self.loss_at and not self.eval_at:
                self.eval_at = call_sites(places.user_frame(sys._getframe(1)))
        return True

    def _is_trained(self, model: torch.nn.Module, number: int) -> bool:
        """Whether an optimizer has its weights, unlike those of a teacher or a target network."""
        key = number, len(self.job.optimizers) + self.job.by_hand
        if key not in self._trained:
            groups = [group for owner in self.job.optimizers for group in owner.param_groups]
            updated = {id(weight) for group in groups for weight in group["params"]}
            updated.update(map(id, self.job.hand_weights() if self.job.by_hand else ()))
            self._trained[key] = any(id(weight) in updated for weight in model.parameters())
        return self._trained[key]

    def backward(self, loss: torch.Tensor) -> None:
        """`backward` is about to run on this tensor."""
        self.record.backward()
        self.anomaly = self.anomaly or bool(torch.is_anomaly_enabled())
        self.loss_at += call_sites(self._place("backward"))
        if self.window:
            self.losses.saw(loss, self.job.steps)

    def optimizer_starts(self) -> None:
        """`optimizer.step` begins."""
        self.record.optimizer_starts()
        self._place("optimizer")

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` has ended."""
        if len(self.notes.optimizers) < len(self.job.optimizers):
            self.notes.optimizer(optimizer)

    def _place(self, event: str) -> FrameType | None:
        """Record where the program is, the first time; then returns that frame."""
        if event in self.places:
            return None
        frame = places.user_frame(sys._getframe(1))
        self.places[event] = places.location(frame) if frame is not None else None
        return frame

    def step(self, now: float) -> Step:
        """One step has ended."""
        self._batches_train()
        step = self.record.step(now, at_call=self.job.by_hand)
        step.epoch = self.loaders.begun != self._begun
        self._begun = self.loaders.begun
        self.steps.append(step)
        return step

    def room_for(self, steps: int) -> bool:
        """Whether the loader's pass goes on for this many steps, or is always shorter.

        The start of a loader would weigh more in a few recorded steps than in the whole run.
        """
        loader = self.record.training_loader
        left = self.loaders.left(loader) if loader is not None else None
        if left is None:
            return True
        needed = steps * max(1, self.steps[-1].micro_steps)
        return left[0] >= needed or left[1] < 2 * needed

    def facts(self, step_s: float | None, wait_share: float | None) -> wire.JobFacts:
        """The job as seen so far."""
        self.notes.by_hand = self.job.by_hand
        self.notes.eval_with_grad = self.record.eval_with_grad
        return self.notes.facts(self.record.mean_micro_steps(), step_s, wait_share)

    def remove(self) -> None:
        """Remove everything."""
        self.window = False
        self.calls.remove()
        for undo in self._undo:
            undo()
        self._undo = []
        self.notes.close()
        self.record.forget()
        self.loaders.remove()


def call_sites(frame: FrameType | None) -> list[CallSite]:
    """The user's lines, from one of the user's frames outwards."""
    sites: list[CallSite] = []
    while frame is not None and len(sites) < STACK:
        code = frame.f_code
        sites.append(CallSite(code.co_filename, frame.f_lineno, code.co_name))
        frame = places.user_frame(frame.f_back)
    return sites
