"""The counted step: its floating-point operations, its data flow and the lines of its update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from flatout_agent import wire
from flatout_agent.job import Job
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch.loop_record import Step
from flatout_agent.watch.profile import compile, flops
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.records import FlowLine
from flatout_agent.watch.profile.flow.results import results
from flatout_agent.watch.profile.flow.weights import WeightLooks
from flatout_agent.watch.profile.loop import LoopNotes
from flatout_agent.watch.profile.recording import ATTEMPTS, give_way, other_profiler
from flatout_agent.watch.profile.updates import UpdateLines


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

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any) -> None:
        """A loader has given a batch."""
        if self._flow is not None:
            self.recorder.safely("profile: flow", self._flow.batch, batch, loader)

    def begin(self) -> bool:
        """Count from the next step on; returns whether there is anything to count.

        Nothing is counted while a profiler of the script runs, which would see operators twice.
        """
        if not other_profiler():
            self._flow = self.recorder.safely("profile: flow", self._new_flow)
            self._count = flops.counter(list(self.job.models), self._flow)
            if self._count is not None and self._flow is not None:
                self.loop.inputs = self._flow.inputs
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
        self.loop.inputs = lambda args, kwargs: None
        if flow is not None:
            sites = self.loop.loss_at
            training = [FlowLine(site.path, site.line, site.function) for site in sites]
            self.flow = results(flow, training, self._weights, self.job.by_hand)
            if flow.error is not None:
                self.recorder.fault("profile: flow", flow.error)
