"""The counted step: its floating-point operations, its data flow and the lines of its update.

Operations are counted as `torch.utils.flop_counter` counts them. Its `FlopCounterMode` also hooks
every module to tell them apart. These hooks are left out: only the total is needed, and the step
must stay as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from flatout_agent import wire
from flatout_agent.job import Job
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch.loop_record import Step
from flatout_agent.watch.profile import compile
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.questions.gradients import WeightLooks
from flatout_agent.watch.profile.flow.records import FlowLine
from flatout_agent.watch.profile.flow.results import results
from flatout_agent.watch.profile.loop import LoopNotes
from flatout_agent.watch.profile.modes import StepMode
from flatout_agent.watch.profile.recording import ATTEMPTS, give_way, other_profiler
from flatout_agent.watch.profile.updates import UpdateLines


class _Count(StepMode):
    """Sums up the operations of all operators seen."""

    def __init__(self, flow: Flow | None) -> None:
        from torch.utils.flop_counter import flop_registry  # not loaded with torch

        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.flops = 0.0
        self.flow = flow
        self._registry: Any = flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        began = time.thread_time()  # what other programs do meanwhile is not its time
        out = func(*args, **kwargs)
        spent, flops = time.thread_time() - began, 0.0
        formula = self._registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            try:
                flops = formula(*args, **kwargs, out_val=out)
            except Exception:
                flops = float("nan")
        if self.flow is None or self.flow.step == 0:
            self.flops += flops
        if self.flow is not None:
            self.flow.operator(func, args, kwargs, out, spent, flops if flops == flops else 0.0)
        return out

    def enter(self) -> None:
        super().enter()
        if self.flow is not None:
            self.flow.install()

    def leave(self) -> None:
        if self.flow is not None:
            self.flow.remove()
        super().leave()


class StepCount:
    """Counts one step's operations, and follows its data flow through the next step, too."""

    def __init__(self, job: Job, recorder: Recorder, loop: LoopNotes) -> None:
        self.job = job
        self.recorder = recorder
        self.loop = loop
        self.flops: float | None = None
        self.flow: wire.FlowSeen | None = None
        self.update: wire.UpdateSeen | None = None
        self._weights: WeightLooks | None = None
        self._count: Any = None
        self._counted = 0
        """The number of steps, including those with an evaluation."""
        self._flow: Flow | None = None
        self._update_lines: UpdateLines | None = None
        self._stop_waiting: Callable[[], None] = lambda: None

    def look_at_weights(self) -> None:
        """Fingerprints of the weights some steps before the counted one, which show by then which
        of them change.
        """
        self._weights = self.recorder.safely("profile: weights", WeightLooks, self.job.models)

    def batch(self, batch: Any) -> None:
        """A loader has given a batch."""
        if self._flow is not None:
            self._flow.batch(batch)

    def begin(self) -> bool:
        """Count from the next step on; returns whether there is anything to count.

        Nothing is counted while a profiler of the script runs, which would see operators twice.
        """
        if not other_profiler():
            self._flow = self.recorder.safely("profile: flow", self._new_flow)
            self._count = flop_counter(list(self.job.models), self._flow)
            self._update_lines = self.recorder.safely("profile: update", self._new_update_lines)
        if self._count is None and self._update_lines is None:
            return False
        self._stop_waiting = give_way(self.end)
        return True

    def step(self, step: Step) -> bool:
        """A step has ended; returns whether there is more to count."""
        self.recorder.safely("profile: update", self._end_update_lines)
        flow, again = self._flow, step.eval_s and self._counted + 1 < ATTEMPTS
        first = flow is None or flow.steps == 0
        if flow is not None:
            flow.next_step()
        if flow is not None and flow.going and first and not again and self._count is not None:
            return True  # the second step reads what the first has made, or makes it again
        self.end()
        self._counted += 1
        return bool(again and first) and self.begin()  # an evaluation was counted too

    def end(self) -> None:
        """Stop counting."""
        self.recorder.safely("profile: update", self._end_update_lines)
        self._stop_waiting()
        if self._count is not None:
            count, self._count = self._count, None
            self.flops = count()
            self.recorder.safely("profile: flow", self._end_flow)

    def _new_flow(self) -> Flow | None:
        """A new flow, or None if compiled code runs, whose reads are not seen."""
        if compile.in_use():
            return None
        models: list[torch.nn.Module] = list(self.job.models)
        groups = [group for optimizer in self.job.optimizers for group in optimizer.param_groups]
        weights = [weight for group in groups for weight in group["params"]]
        if not models and any(type(weight.data) is not torch.Tensor for weight in weights):
            return None
        followed = models or [torch.nn.ParameterList(weights)]
        trained = [*weights, *self.job.hand_weights()]
        flow = Flow(followed, lambda: self.loop.calls.in_loader, trained)
        flow.modelled = bool(models)
        return flow if models or weights else None

    def _new_update_lines(self) -> UpdateLines | None:
        """A new watch on the update, or None if an optimizer steps or operators of compiled code
        would not be seen.
        """
        if not self.job.by_hand or compile.in_use():
            return None
        if len(_get_current_dispatch_mode_stack()) > int(self._count is not None):
            return None  # the script's own mode would be left while ours is inside it
        return UpdateLines.start(self.job.hand_weights, self.job.inside_backward)

    def _end_update_lines(self) -> None:
        update_lines, self._update_lines = self._update_lines, None
        if update_lines is not None:
            self.update = update_lines.end() or self.update

    def _end_flow(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            sites = self.loop.loss_at
            training = [FlowLine(site.path, site.line, site.function) for site in sites]
            self.flow = results(flow, training, self._weights, self.job.by_hand)
            if flow.error is not None:
                self.recorder.fault("profile: flow", flow.error)


def flop_counter(
    models: list[torch.nn.Module], flow: Flow | None = None
) -> Callable[[], float | None] | None:
    """Begin to count; returns a function that ends counting and gives the sum (None if nothing
    known was called).

    flow: also sees each operator, even if no model is known; only the operations of its first
    step are counted.

    Returns None if counting is impossible: torch.compile's code runs outside dispatch modes or
    would be compiled again, and an operator on a distributed tensor would be counted for all
    devices.
    """
    if not (models or flow) or any(_unfit(model) for model in models):
        return None
    if _get_current_dispatch_mode_stack():
        return None  # the script's own mode would be left while ours is inside it
    mode = _Count(flow)
    mode.enter()

    def end() -> float | None:
        mode.leave()
        flops = mode.flops
        return flops if 0 < flops < float("inf") else None

    return end


def _unfit(model: torch.nn.Module) -> bool:
    parts = list(model.modules())
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        return True
    if any(type(part).__name__ == "OptimizedModule" for part in parts):
        return True
    return any(type(parameter.data) is not torch.Tensor for parameter in model.parameters())
