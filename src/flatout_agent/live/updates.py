"""Compares an optimizer's update, as written and under a boost, from one gradient.

After the program's own step the weights and the optimizer's state are restored, the step is
repeated under the boost, and then everything is set to what the program's own step left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from flatout_agent.boost import Declined
from flatout_agent.boosts import load
from flatout_agent.job import Job
from flatout_agent.live import guard, headroom
from flatout_agent.live.calls import RepeatedCall
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.failed_calls import first_line
from flatout_agent.live.guard import NOT_COMPARED, ULP, GuardVerdict, NoiseFloor
from flatout_agent.speedups import forward_state

Apply = Callable[[], Callable[[], None]]
"""Switches the boost on; returns the undo function."""
REORDERED = 2e-5
"""Updates are small differences of large weights, so their last places are rounding."""


class CheckedUpdates:
    """Compares the next update of each optimizer under the boost in question."""

    def __init__(self, job: Job, repeating: Callable[[], AbstractContextManager[None]]) -> None:
        """repeating: the context in which the Guard works."""
        self.job, self._repeating = job, repeating
        self._before: WeightsBefore | None = None
        self.ask(None)

    def ask(self, candidate: Candidate | None) -> None:
        """Compare the next updates under this boost, or none."""
        self._asked = candidate
        self._verdicts: dict[int, GuardVerdict] = {}
        """By optimizer."""
        self.not_compared: dict[int, str] = {}
        """Why an update could not be compared, by optimizer."""
        self._declined = ""

    @property
    def known(self) -> bool:
        """Whether there is an answer, if any was asked for."""
        return self._asked is None or bool(self._verdicts or self._declined)

    @property
    def verdict(self) -> GuardVerdict:
        """The worst one so far; a boost of updates is exact, so what was not compared passes."""
        worst = guard.worst(list(self._verdicts.values()))
        if worst is not None:  # one optimizer that takes it is enough
            return worst
        if self._declined:
            return GuardVerdict(False, self._declined)
        reason = next(iter(self.not_compared.values()), "no update of an optimizer was seen")
        return GuardVerdict(True, f"{NOT_COMPARED}{reason}")

    def starts(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the weights if a boost is in question and there is room for them."""
        if self._asked is None:
            return
        reason = headroom.lack_for_update(optimizer)
        if reason is not None:
            self.not_compared[id(optimizer)] = reason
            return
        try:
            self._before = WeightsBefore(optimizer)
        except headroom.OUT_OF_MEMORY:
            self._no_memory(optimizer)

    def ends(self, optimizer: torch.optim.Optimizer) -> None:
        """The program's own update is done: repeat it under the boost, and compare."""
        before, self._before = self._before, None
        if before is None or before.optimizer is not optimizer or self._asked is None:
            return
        candidate = self._asked

        def apply() -> Callable[[], None]:
            return load(candidate.id).apply(self.job, optimizer, dict(candidate.params)).undo

        try:
            with self._repeating():
                verdict = before.verdict(apply)
        except Declined as reason:
            self._declined = str(reason)
            return
        except headroom.OUT_OF_MEMORY:
            self._no_memory(optimizer)
            return
        except Exception as error:
            verdict = GuardVerdict(False, first_line(error), failed=True)
        if verdict is not None:
            self._verdicts[id(optimizer)] = verdict

    def _no_memory(self, optimizer: torch.optim.Optimizer) -> None:
        self.not_compared[id(optimizer)] = headroom.TOO_LITTLE
        self._asked = None  # no other update is compared for this question


class WeightsBefore:
    """Weights and optimizer state before a step of the program."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.weights = [p.detach().clone() for p in self.parameters]
        self.groups = _settings(optimizer)
        self.state = self._copied(optimizer.state)
        self.restore_random = forward_state.random_state([])

    def twice(self, apply: Apply) -> tuple[RepeatedCall, RepeatedCall]:
        """(the program's own update, the boost's update); called when the program's step
        has ended.
        """
        optimizer = self.optimizer
        after = [p.detach().clone() for p in self.parameters]
        gradients = [p.grad for p in self.parameters]
        program_state = dict(optimizer.state)  # the very tensors: the boost gets copies
        groups, restore_random = _settings(optimizer), forward_state.random_state([])
        written = self._update()
        try:
            self._put(self.weights)
            _set(optimizer, self.groups)
            optimizer.state.clear()
            optimizer.state.update(self._copied(self.state))
            self.restore_random()
            boosted = self._boosted(apply)
        finally:
            self._put(after)
            _set(optimizer, groups)
            optimizer.state.clear()
            optimizer.state.update(program_state)
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if parameter.grad is not gradient:
                    parameter.grad = gradient
            restore_random()
        return written, boosted

    def verdict(self, apply: Apply) -> GuardVerdict | None:
        """Whether the boost's update equals the program's own, or None if nothing was updated."""
        written, boosted = self.twice(apply)
        # Rounding the weights alone may change the updates by so much.
        weights = math.sqrt(sum(float(w.float().square().sum()) for w in self.weights))
        update = math.sqrt(
            sum(float(u.float().square().sum()) for u in written.gradients if u is not None)
        )
        if update == 0.0:
            return None
        noise_floor = NoiseFloor(max(REORDERED, ULP / 2 * weights / update), None, None)
        return guard.judge(guard.compare(written, boosted), noise_floor, "exact", False)

    def _boosted(self, apply: Apply) -> RepeatedCall:
        optimizer, kind = self.optimizer, type(self.optimizer)
        step: Any = kind.step
        if getattr(step, "hooked", False):
            step = step.__wrapped__
        hooks = optimizer._optimizer_step_pre_hooks
        program_hooks = set(hooks)
        undo = apply()
        try:
            for key in [key for key in hooks if key not in program_hooks]:
                hooks[key](optimizer, (optimizer,), {})  # the boost's: it lays out gradients
            with torch.no_grad():
                step(optimizer)
            return self._update()
        finally:
            undo()

    def _update(self) -> RepeatedCall:
        pairs = zip(self.parameters, self.weights, strict=True)
        changes = [p.detach() - before for p, before in pairs]
        return RepeatedCall([], changes, [f"parameter {number}" for number in range(len(changes))])

    def _put(self, weights: list[torch.Tensor]) -> None:
        for parameter, value in zip(self.parameters, weights, strict=True):
            parameter.data.copy_(value)

    def _copied(
        self, state: Mapping[torch.Tensor, dict[str, Any]]
    ) -> dict[torch.Tensor, dict[str, Any]]:
        return {
            parameter: {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in values.items()
            }
            for parameter, values in state.items()
        }


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What the groups hold besides their parameters: rates, and the counters of some optimizers."""
    groups = optimizer.param_groups
    return [{key: group[key] for key in group if key != "params"} for group in groups]


def _set(optimizer: torch.optim.Optimizer, settings: list[dict[str, Any]]) -> None:
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        for key in [key for key in group if key != "params" and key not in values]:
            del group[key]
        group.update(values)
