"""The record of a training loop: each step's time, waiting, evaluation and samples."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent.watch import step_calls
from flatout_agent.watch.step_calls import StepCalls
from flatout_agent.watch.tensors import samples_in, tensors_in


@dataclass(slots=True)
class Step:
    """One step so far, in seconds. `backwards`: its backward passes. `updates`: the optimizer steps
    that such passes came before. `epoch`: a loader was started in it.
    """

    wall_s: float = 0.0
    wait_s: float = 0.0
    eval_s: float = 0.0
    samples: int = 0
    backwards: int = 0
    updates: int = 0
    epoch: bool = False
    tested: bool = False
    """Whether a model that is trained was evaluated in it."""

    @property
    def train_s(self) -> float:
        return max(0.0, self.wall_s - self.eval_s)

    @property
    def micro_steps(self) -> int:
        """Backward passes whose gradients add up to one update. A GAN has several passes in a step,
        each for an optimizer of its own.
        """
        return max(1, round(self.backwards / max(1, self.updates)))


class LoopRecord:
    """Counts batches, model calls, backward passes and steps, as a watcher learns of them.

    Batches count as training batches once a training call or the step's end follows them; batches
    followed by an evaluation belong to it. Samples are those of the loader that feeds the training
    calls or, without a loader, those of the model's first inputs.
    """

    def __init__(
        self, until_training: bool = False, waits: Callable[[], None] = lambda: None
    ) -> None:
        """until_training: an evaluation lasts until training goes on, not until its last call.

        waits: waits for the devices before an evaluation begins, so that it does not seem to take
        the time of training that is still queued there.
        """
        self.current = Step()
        """The step under way."""
        self.steps = 0
        """Steps that have ended."""
        self.micro_steps = 0
        """The micro-steps in them."""
        self.training_loader: torch.utils.data.DataLoader[Any] | None = None
        self.last_loader: torch.utils.data.DataLoader[Any] | None = None
        self.eval_with_grad = False
        """Whether an evaluation recorded gradients that were never used."""
        self.began: float | None = None
        """When the current step began, or None before the first batch or call."""
        self._until_training, self._waits = until_training, waits
        self._waited_s = 0.0
        self._samples = 0
        self._call_samples = 0
        self._eval_began: float | None = None
        self._eval_ended = 0.0
        self._recorded_grad = False
        self._backwards_before = 0
        """Backward passes of the step before the last optimizer step began."""
        self._step_calls = StepCalls()
        self._loader_started = False
        self._recent: deque[Step] = deque(maxlen=step_calls.STEPS - 1)

    def loader_starts(self) -> None:
        """A loader's pass has begun in the step under way."""
        self._loader_started = True

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any, wait_s: float) -> None:
        """A loader has given a batch after `wait_s` seconds."""
        if self.began is None:
            self.began = time.perf_counter() - wait_s
        self.last_loader = loader
        self._waited_s += wait_s
        self._samples += samples_in(batch)

    def counts(self, loader: torch.utils.data.DataLoader[Any], batch: Any, wait_s: float) -> bool:
        """Count a batch as `batch` does if its loader feeds the training calls; else return
        False.
        """
        if loader is not self.training_loader:
            return False
        self._waited_s += wait_s
        self._samples += samples_in(batch)
        return True

    def batches_train(self) -> None:
        """The loader's batches are for training: an evaluation would have been seen."""
        self.current.wait_s += self._waited_s
        self.current.samples += self._samples
        self._waited_s, self._samples = 0.0, 0
        if self.last_loader is not None:
            self.training_loader = self.last_loader

    def training_call(self, args: Any, kwargs: Any, lead: bool) -> tuple[int, ...] | None:
        """A root model is about to be called in training; returns the shape of its first input.

        lead: it is the first of them, whose inputs count if there is no loader.
        """
        now = time.perf_counter()
        if self.began is None:
            self.began = now
        self.batches_train()
        self._end_evaluation(now)
        first = next(tensors_in((args, kwargs)), None)
        if first is None:
            return None
        if lead and first.dim():
            self._call_samples += int(first.shape[0])
        return tuple(first.shape)

    def _end_evaluation(self, now: float) -> None:
        """Training goes on: the evaluation, if there was one, is over."""
        if self._eval_began is not None:
            ended = now if self._until_training else self._eval_ended
            self.current.eval_s += max(0.0, ended - self._eval_began)
            self._eval_began = None
            self.eval_with_grad = self.eval_with_grad or self._recorded_grad
            self._recorded_grad = False

    def evaluates(self, model: torch.nn.Module, args: Any, kwargs: Any) -> bool:
        """A root model is about to be called outside of training, or without gradients.

        Returns False if the call belongs to each step, as gathering experience does, and training
        goes on.
        """
        known = self._step_calls.known
        own_loader = self._loader_started and bool(self._samples or self._waited_s)
        if not self._step_calls.belong(model, (args, kwargs), self.steps, own_loader):
            self.evaluation_begins()
            return True
        if self._step_calls.known > known:
            # Until it was learnt to belong to each step, it was taken for evaluation.
            for step in self._recent:
                if not step.tested:
                    step.eval_s = 0.0
        now = time.perf_counter()
        if self.began is None:
            self.began = now
        self._end_evaluation(now)
        return False

    def evaluation_begins(self) -> None:
        """An evaluation begins or goes on."""
        self._waited_s, self._samples = 0.0, 0
        self.last_loader = None
        if self._eval_began is None:
            self._waits()
            self._eval_began = time.perf_counter()

    @property
    def evaluation(self) -> tuple[bool, float]:
        """(whether an evaluation has begun and no training call has followed, when its last call
        ended).
        """
        return self._eval_began is not None, self._eval_ended

    def evaluated(self, output: Any) -> None:
        """That call has returned `output`."""
        self._eval_ended = time.perf_counter()
        if any(tensor.requires_grad for tensor in tensors_in(output)):
            self._recorded_grad = True

    def backward(self) -> None:
        """`backward` is about to run: a loss computed in evaluation mode but trained on is no
        evaluation.
        """
        self._recorded_grad = False
        self.current.backwards += 1

    def optimizer_starts(self) -> None:
        """`optimizer.step` begins."""
        self.current.updates += self.current.backwards > self._backwards_before
        self._backwards_before = self.current.backwards

    @property
    def closure(self) -> bool:
        """Whether `optimizer.step` has computed the loss itself."""
        return self.current.backwards > self._backwards_before

    def step(self, now: float, at_call: bool = False) -> Step:
        """One step has ended. at_call: where the next training call is about to begin."""
        if at_call:
            self._end_evaluation(now)
        if self._samples or self._waited_s:
            self.batches_train()
        step, self.current = self.current, Step()
        self._backwards_before = 0
        if self.training_loader is None:
            step.samples = self._call_samples
        self._call_samples = 0
        if self.began is not None:
            step.wall_s = now - self.began
        self.steps += 1
        self.micro_steps += step.micro_steps
        self._loader_started = False
        self._recent.append(step)
        return step

    def start_over(self) -> None:
        """Discard the counts of the current step."""
        self.current, self._backwards_before = Step(), 0
        self._waited_s, self._samples, self._call_samples = 0.0, 0, 0
        self._eval_began = None
        self.goes_on()

    def goes_on(self) -> None:
        """The next step begins now: flatout's own work since the last one is not counted."""
        self.began = time.perf_counter()

    def mean_micro_steps(self) -> float:
        """Micro-steps of a step, on average; 1 before the first one."""
        return self.micro_steps / self.steps if self.steps else 1.0

    def buffered(self) -> int:
        """The number of batches that loader workers may have ready, which make as many steps look
        fast.
        """
        loader = self.training_loader
        return 0 if loader is None else loader.num_workers * (loader.prefetch_factor or 0)

    def forget(self) -> None:
        """Release the loaders."""
        self.training_loader = self.last_loader = None
