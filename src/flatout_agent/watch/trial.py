"""Watch one trial: warm-up, measured windows; then stop the program."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from flatout_agent import wire
from flatout_agent.booster import Booster
from flatout_agent.chain import Depth
from flatout_agent.job import Job
from flatout_agent.job_facts import JobNotes, world_size
from flatout_agent.recorder import Recorder
from flatout_agent.watch import Watcher
from flatout_agent.watch.run import compile_counters
from flatout_agent.watch.tensors import peak_bytes, samples_in, synchronize, tensors_in
from flatout_agent.watch.window import Window


class TrialWatch(Watcher):
    """Gets every call of discovery to the end: a trial is short and may cost a little."""

    light = False

    def __init__(
        self, job: Job, booster: Booster, recorder: Recorder, orders: wire.TrialOrders
    ) -> None:
        self.job = job
        self.booster = booster
        self.recorder = recorder
        self.orders = orders
        self.torch = job.torch
        self.notes = JobNotes(job.torch)
        self.window = Window(orders, lockstep=world_size() > 1)
        self.losses: list[list[Any]] = []
        self._step_losses: list[Any] = []
        self._last: float | None = None
        self._wait_s = 0.0
        self._eval_began: float | None = None
        self._eval_s = 0.0
        self._eval_with_grad: list[Any] = []
        self._training_loader: Any = None
        self._last_loader: Any = None
        self._loader_samples = 0
        self._model_samples = 0
        self._steps: list[wire.StepTaken] = []
        self._over = False

    # What discovery tells -----------------------------------------------------------------------

    def loader_found(self, loader: Any) -> None:
        self.notes.loader(loader)

    def batch(self, loader: Any, batch: Any, wait_s: float) -> Any:
        if self._last is None:
            self._last = time.perf_counter() - wait_s
        self._last_loader = loader
        if self._training_loader is None or loader is self._training_loader:
            self._wait_s += wait_s
            self._loader_samples += samples_in(self.torch, batch)
        return batch

    def model_found(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.notes.model(model)
        number = self.job.models.index(model)
        self.job.wrap_call(model, Depth.WATCH, lambda call: self._watched(model, number, call))

    def _watched(self, model: Any, number: int, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            training = model.training and self.torch.is_grad_enabled()
            if not training:
                output = call(*args, **kwargs)
                self.recorder.safely("evaluation", self._evaluated, output)
                return output
            self.recorder.safely("training call", self._training_begins, number, args, kwargs)
            if self.job.steps:
                return call(*args, **kwargs)
            return self.notes.first_call(number, lambda: call(*args, **kwargs))

        return watched

    def _training_begins(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        now = time.perf_counter()
        if self._last is None:
            self._last = now
        if self._training_loader is None:
            self._training_loader = self._last_loader
        if self._eval_began is not None:
            self._eval_s += now - self._eval_began
            self._eval_began = None
            self.notes.eval_with_grad = self.notes.eval_with_grad or bool(self._eval_with_grad)
            self._eval_with_grad = []
        first = next(tensors_in(self.torch, (args, kwargs)), None)
        if first is not None:
            self.notes.inputs(number, tuple(first.shape))
            if number == 0:
                self._model_samples += int(first.shape[0]) if first.dim() else 0

    def _evaluated(self, output: Any) -> None:
        self.notes.eval_seen = True
        if self._eval_began is None:
            self._eval_began = time.perf_counter()
        if any(tensor.requires_grad for tensor in tensors_in(self.torch, output)):
            self._eval_with_grad.append(True)

    def backward(self, loss: Any) -> None:
        self._eval_with_grad = []  # a loss in evaluation mode that is trained on
        self._step_losses.append(loss.detach().clone())

    def optimizer_starts(self, optimizer: Any) -> None:
        self._backwards_before = len(self._step_losses)

    def optimizer_ends(self, optimizer: Any) -> None:
        closure = len(self._step_losses) > self._backwards_before
        if len(self.notes.optimizers) < len(self.job.optimizers):
            self.notes.optimizer(optimizer, closure)

    # Steps --------------------------------------------------------------------------------------

    def step(self) -> None:
        now = time.perf_counter()
        if self._over:
            return
        index = self.job.steps - 1
        if index == 0:
            self._first_step()
        phase = self.window.phase()
        closing = phase == "window" and self.window.closes(now)
        if phase != "window" or closing:
            synchronize(self.job)
            now = time.perf_counter()
        began = self._last if self._last is not None else now
        self._record(index, phase, now - began)
        self._last = time.perf_counter()
        if self.window.step_ended(
            self._steps[-1], closing, self._buffered(), compile_counters()[0]
        ):
            self._window_begins()
        if self.window.complete:
            self._finish("window")

    def _first_step(self) -> None:
        if self.orders.scratch:
            from flatout_agent import overlay

            overlay.mark_first_step()

    def _record(self, index: int, phase: wire.Phase, wall_s: float) -> None:
        samples = self._loader_samples if self._training_loader is not None else self._model_samples
        step = wire.StepTaken(
            index=index,
            phase=phase,
            wall_s=wall_s,
            wait_s=self._wait_s,
            eval_s=self._eval_s,
            samples=samples,
            micro_steps=max(1, len(self._step_losses)),
            window=self.window.number,
        )
        self._steps.append(step)
        self.recorder.write(step)
        self.losses.append(self._step_losses)
        self._step_losses = []
        self._wait_s = self._eval_s = 0.0
        self._loader_samples = self._model_samples = 0

    def _buffered(self) -> int:
        """Batches that loader workers may have ready: the steps that they make look fast."""
        loader = self._training_loader
        return 0 if loader is None else loader.num_workers * (loader.prefetch_factor or 0)

    def _window_begins(self) -> None:
        synchronize(self.job)
        if self.orders.gates:
            self._wait_at_gate(self.window.number)
        self._last = time.perf_counter()
        self.window.begins(self._last)

    def _wait_at_gate(self, number: int) -> None:
        path = os.path.join(self.recorder.folder, f"gate-{number}")  # noqa: PTH118
        parent = os.getppid()
        self.recorder.write(wire.AtGate(number, path))
        while not os.path.exists(path):  # noqa: PTH110
            time.sleep(0.002)
            if os.getppid() != parent:  # the host is gone
                os._exit(1)
        with open(path) as gate:  # noqa: PTH123
            if gate.read() == wire.LAST_GATE:
                self._finish("window")

    # The end ------------------------------------------------------------------------------------

    def program_ends(self) -> None:
        if not self._over:
            self._write_end("program")

    def _finish(self, reason: wire.EndReason) -> None:
        """Stop the program at once: nothing of it is wanted any more, its clean-up least of all."""
        self._write_end(reason)
        for child in multiprocessing.active_children():
            child.kill()
        for stream in (sys.stdout, sys.stderr):
            self.recorder.safely("flush", stream.flush)
        os._exit(0)

    def _write_end(self, reason: wire.EndReason) -> None:
        self._over = True
        self.booster.report()
        self.recorder.write(wire.LossesSeen(tuple(map(_mean, self.losses))))
        measured = [step for step in self._steps if step.phase == "window"] or self._steps[1:]
        train_s = sum(step.wall_s - step.eval_s for step in measured)
        wait_s = sum(step.wait_s for step in measured)
        micro = [step.micro_steps for step in self._steps]
        facts = self.notes.facts(
            micro_steps=sum(micro) / len(micro) if micro else 1.0,
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
            )
        )


def _mean(losses: list[Any]) -> float | None:
    """Mean over a step's backward passes; None for NaN, Inf and steps without a loss."""
    if not losses:
        return None
    value = sum(float(loss.double().mean()) for loss in losses) / len(losses)
    return value if abs(value) < float("inf") else None
