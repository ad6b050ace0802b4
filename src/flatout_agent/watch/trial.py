"""Watch one trial: warm-up, measured windows; then stop the program."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.attach.chain import Depth
from flatout_agent.job import Job
from flatout_agent.limits import world_size
from flatout_agent.speedups.workers import worker_safety
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import Watcher
from flatout_agent.watch.ending import children_started, end_process
from flatout_agent.watch.job_facts import JobNotes
from flatout_agent.watch.loop_record import LoopRecord
from flatout_agent.watch.run import compile_counters
from flatout_agent.watch.tensors import peak_bytes, synchronize
from flatout_agent.watch.training_calls import is_frozen, is_of_training
from flatout_agent.watch.window import TrialWindow


class TrialWatch(Watcher):
    """Receives every call of discovery to the end: a trial is short and may cost a little."""

    light = False

    def __init__(
        self, job: Job, booster: Booster, recorder: Recorder, orders: wire.TrialOrders
    ) -> None:
        self.job = job
        self.booster = booster
        self.recorder = recorder
        self.orders = orders
        self.notes = JobNotes()
        self.window = TrialWindow(orders, lockstep=world_size() > 1)
        self.record = LoopRecord(until_training=True, waits=lambda: synchronize(job))
        self.losses: list[list[torch.Tensor]] = []
        self._step_losses: list[torch.Tensor] = []
        self._steps: list[wire.StepTaken] = []
        self._over = False

    # What discovery reports ---------------------------------------------------------------------

    def loader_found(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        self.notes.loader(loader)

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any, wait_s: float) -> Any:
        self.record.batch(loader, batch, wait_s)
        return batch

    def epoch_begins(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        self.record.loader_starts()

    def model_found(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.notes.model(model)
        number = self.job.models.index(model)
        self.job.wrap_call(model, Depth.WATCH, lambda call: self._watched(model, number, call))

    def _watched(
        self, model: torch.nn.Module, number: int, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.notes.capturing():
                return call(*args, **kwargs)
            if not is_of_training(model, args, kwargs):
                if is_frozen(model):
                    return call(*args, **kwargs)
                safely, evaluates = self.recorder.safely, self.record.evaluates
                evaluating = safely("evaluation", evaluates, model, args, kwargs)
                output = call(*args, **kwargs)
                if evaluating:
                    safely("evaluation", self.record.evaluated, output)
                return output
            self.recorder.safely("training call", self._training_begins, number, args, kwargs)
            if self.job.steps:
                return call(*args, **kwargs)
            return self.notes.first_call(number, lambda: call(*args, **kwargs))

        return watched

    def _training_begins(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shape = self.record.training_call(args, kwargs, lead=number == 0)
        if shape is not None:
            self.notes.inputs(number, shape)
            self.notes.padding(number, args, kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        if self.notes.capturing():
            return
        self.record.backward()
        self._step_losses.append(self.notes.losses.of(loss).detach().clone())

    def optimizer_starts(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.notes.capturing():
            self.record.optimizer_starts()

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        if len(self.notes.optimizers) < len(self.job.optimizers):
            self.notes.optimizer(optimizer)

    # Steps --------------------------------------------------------------------------------------

    def start_over(self) -> None:
        self.record.start_over()
        self._step_losses = []

    def step(self) -> None:
        now = time.perf_counter()
        if self._over or self.notes.capturing():
            return
        index = self.job.steps - 1
        if index == 0:
            if self.orders.reseed:
                self._reseed(torch.initial_seed() + self.orders.reseed)
            if self.orders.scratch:
                from flatout_agent import overlay

                overlay.mark_first_step()
        phase = self.window.phase()
        closing = phase == "window" and self.window.closes(now)
        if phase != "window" or closing:
            synchronize(self.job)
            now = time.perf_counter()
        self._record_step(index, phase, now)
        self.record.goes_on()
        buffered = self.record.buffered()
        filling = phase != "window" and self.booster.fills()
        if self.window.step_ended(
            self._steps[-1], closing, buffered, compile_counters()[0], filling
        ):
            synchronize(self.job)
            steps = self._wait_at_gate(self.window.number) if self.orders.gates else None
            self.record.goes_on()
            self.window.begins(time.perf_counter(), steps)
        elif index == 0 and self.orders.gates:
            self.window.warm_until = self._wait_at_gate(wire.FIRST_GATE)
            self.record.goes_on()
        if self.window.complete:
            self._finish("window")

    def _reseed(self, seed: int) -> None:
        """Draw other numbers from here on, also where samples are augmented."""
        torch.manual_seed(seed)
        seed %= 2**32
        random.seed(seed)
        numpy: Any = sys.modules.get("numpy.random")
        if numpy is not None:
            numpy.seed(seed)
        for loader in self.job.loaders:
            for number, generator in enumerate(worker_safety.random_generators(loader)):
                worker_safety.reseed(generator, (seed + number) % 2**32)

    def _record_step(self, index: int, phase: wire.Phase, now: float) -> None:
        record = self.record.step(now, at_call=self.job.by_hand)
        step = wire.StepTaken(
            index=index,
            phase=phase,
            wall_s=record.wall_s,
            wait_s=record.wait_s,
            eval_s=record.eval_s,
            samples=record.samples,
            window=self.window.number,
        )
        self._steps.append(step)
        self.recorder.write(step)
        self.losses.append(self._step_losses)
        self._step_losses = []

    def _wait_at_gate(self, number: int) -> int | None:
        """Returns the number that the host has written into the gate, or None if there is none."""
        path = os.path.join(self.recorder.folder, f"gate-{number}")  # noqa: PTH118
        parent = os.getppid()
        self.recorder.write(wire.AtGate(number, path))
        while not os.path.exists(path):  # noqa: PTH110
            time.sleep(0.002)
            if os.getppid() != parent:  # the host is gone
                os._exit(1)
        with open(path) as gate:  # noqa: PTH123
            text = gate.read()
        if text == wire.LAST_GATE:
            self._finish("window")
        return int(text) if text.isdigit() else None

    # The end ------------------------------------------------------------------------------------

    def program_ends(self) -> None:
        if not self._over:
            self._write_end("program")

    def _finish(self, reason: wire.EndReason) -> None:
        """Stop the program at once."""
        self._write_end(reason)
        end_process(self.recorder)

    def _write_end(self, reason: wire.EndReason) -> None:
        self._over = True
        self.booster.report()
        self.recorder.write(wire.LossesSeen(tuple(map(_mean, self.losses))))
        measured = [step for step in self._steps if step.phase == "window"] or self._steps[1:]
        train_s = sum(step.train_s for step in measured)
        wait_s = sum(step.wait_s for step in measured)
        self.notes.by_hand = self.job.by_hand
        self.notes.eval_with_grad = self.record.eval_with_grad
        facts = self.notes.facts(
            micro_steps=self.record.mean_micro_steps(),
            step_s=train_s / len(measured) if measured else None,
            wait_share=wait_s / train_s if train_s else None,
        )
        self.recorder.write(wire.JobSeen(facts))
        recompiles, graph_breaks = compile_counters()
        self.recorder.write(
            wire.Ended(
                reason=reason,
                steps=self.job.steps,
                samples=sum(step.samples for step in measured),
                train_s=train_s,
                wait_s=wait_s,
                peak_bytes=peak_bytes(self.job),
                recompiles=recompiles,
                graph_breaks=graph_breaks,
                backwards=self.job.backwards,
                children=children_started(),
            )
        )


def _mean(losses: list[torch.Tensor]) -> float | None:
    """Mean loss over a step's backward passes; None for NaN, Inf and steps without a loss."""
    if not losses:
        return None
    value = sum(float(loss.double().mean()) for loss in losses) / len(losses)
    return value if abs(value) < float("inf") else None
