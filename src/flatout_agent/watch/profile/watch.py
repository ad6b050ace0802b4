"""Watch a window of the real run, first undisturbed steps, then recorded ones; then let it go on.

Phases, each counted in steps: warmup (until step times are stable), window (undisturbed: nothing
is recorded, only watched), sample (lines that the host executes), record (torch.profiler, for
times), detail (with stacks, shapes and memory, for lines) and two steps whose operators are
followed, those of the first one counted. After that all hooks are taken out.
Several ranks take each step together, and none decides by its own clock.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.job import Job
from flatout_agent.limits import world_size
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import Watcher, places
from flatout_agent.watch.ending import children_started, end_process
from flatout_agent.watch.loop_record import Step
from flatout_agent.watch.profile.counting import StepCount
from flatout_agent.watch.profile.loop import LoopNotes
from flatout_agent.watch.profile.own_profilers import hold_off
from flatout_agent.watch.profile.phases import phase_steps
from flatout_agent.watch.profile.process import optimizer_bytes, parameter_bytes
from flatout_agent.watch.profile.recording import (
    ATTEMPTS,
    ProfilerRecording,
    give_way,
    other_profiler,
)
from flatout_agent.watch.profile.seen import Window
from flatout_agent.watch.profile.stacks import StackSampler
from flatout_agent.watch.profile.switches import (
    checkpointing_line,
    double_line,
)
from flatout_agent.watch.profile.worker_stacks import WorkerStacks, with_workers
from flatout_agent.watch.run import compile_counters
from flatout_agent.watch.tensors import peak_bytes, synchronize
from flatout_agent.watch.window import LOCKSTEP_STEPS, stable

WINDOW_S = 1.5
"""Undisturbed steps are watched at least for this long ..."""
SAMPLE_S = 1.0
"""... and stacks sampled for this long, unless that takes too many steps."""
REPORT_S = 0.5
"""Seconds between two records of steps in the same phase."""
PROFILED_STEPS = 500
"""Steps to wait for the end of the script's own profiler."""


class ProfileWatch(Watcher):
    """Receives every call of discovery until the window is over."""

    light = False

    def __init__(
        self, job: Job, booster: Booster, recorder: Recorder, orders: wire.ProfileOrders
    ) -> None:
        self.job = job
        self.booster = booster
        self.recorder = recorder
        self.orders = orders
        self.steps = phase_steps(orders)
        self.loop = LoopNotes(job, recorder)
        self.window = Window(self.loop)
        self.lockstep = world_size() > 1
        self.sampler: StackSampler | None = None
        self.workers = WorkerStacks(recorder.folder)
        self.phase: wire.Phase = "warmup"
        self.trace = self.detail_trace = ""
        self.profiler = False
        self.profiler_where: str | None = None
        self._profiled_from: int | None = None
        """Steps before the first under the script's own profiler."""
        self._restore_profilers = (
            hold_off() if orders.without_profiler else give_way(self._script_profiles)
        )
        self._began: float | None = None
        self._warm_from = self._recompiles = 0
        self._waited = self._attempts = 0
        self._sampled: list[Step] = []
        self._worker_pids: list[int] = []
        self._sampling_began = 0.0
        self._recorded: list[Step] = []
        self._recording: ProfilerRecording | None = None
        self.count = StepCount(job, recorder, self.loop)
        self._over = False
        self._reported_phase = ""
        self._reported_at = 0.0

    def loader_found(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        with self.loop.calls.paused():
            self.loop.notes.loader(loader)

    def batch(self, loader: torch.utils.data.DataLoader[Any], batch: Any, wait_s: float) -> Any:
        self.loop.batch(loader, batch, wait_s)
        self.count.batch(batch)
        return batch

    def model_found(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        with self.loop.calls.paused():
            self.loop.model_found(model)

    def training_call(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if model not in self.loop.watched:
            self.loop.training_begins(self.job.models.index(model), args, kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        self.loop.backward(loss)

    def optimizer_starts(self, optimizer: torch.optim.Optimizer) -> None:
        self.loop.optimizer_starts()

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        with self.loop.calls.paused():
            self.loop.optimizer_ends(optimizer)

    def start_over(self) -> None:
        self.loop.record.start_over()

    def step(self) -> None:
        if self._over or self.loop.notes.capturing():
            return
        now = time.perf_counter()
        if self._began is None:
            self._began = now
        closing = False
        if self.phase == "window":  # whether the step that has just ended is the last undisturbed
            steps = self.window.step_count + 1
            least, most = self.steps.window_least, self.steps.window_most
            if self.lockstep:
                closing = steps >= least
            else:
                long_enough = now - self.window.began >= WINDOW_S
                closing = steps >= most or (steps >= least and long_enough)
        if closing:
            synchronize(self.job)
            now = time.perf_counter()
        step = self.loop.step(now)
        if self.phase != self._reported_phase or now - self._reported_at > REPORT_S:
            # The host follows some steps: to write each one would slow short steps.
            self._reported_phase, self._reported_at = self.phase, now
            self.recorder.write(
                wire.StepTaken(
                    index=self.job.steps - 1,
                    phase=self.phase,
                    wall_s=step.wall_s,
                    wait_s=step.wait_s,
                    eval_s=step.eval_s,
                    samples=step.samples,
                )
            )
        try:
            getattr(self, f"_in_{self.phase}")(step, closing)
        except Exception as error:
            self.recorder.fault(f"profile: {self.phase}", error)
            self._finish()
        self.loop.record.goes_on()

    def _in_warmup(self, step: Step, closing: bool) -> None:
        if self._wait_for_profiler() or not self._warm():
            return
        synchronize(self.job)
        self.phase = "window"
        self.count.look_at_weights()
        self.window.begins(self.job.device)

    def _script_profiles(self) -> None:
        """The script starts a profiler of torch's."""
        if not self._over:
            self.profiler_where = self.profiler_where or places.where()
            # torch 2.13 loads a module at its first mark. If that happens while stacks are traced,
            # its name there comes from freed memory, which the script could not read.
            with torch.autograd.profiler.record_function("flatout"):
                pass

    def _wait_for_profiler(self) -> bool:
        """Whether the script's own profiler runs, or the script has asked for one too often."""
        if not other_profiler():
            return False
        self.profiler = True
        if self._profiled_from is None:
            self._profiled_from = len(self.loop.steps)
        self._waited += 1
        self._warm_from = len(self.loop.steps)
        if self._waited > PROFILED_STEPS:
            self._finish()
        return True

    def _warm(self) -> bool:
        """Whether step times are stable, compilation has ended, and buffers are empty."""
        steps = len(self.loop.steps) - self._warm_from
        enough = steps >= self.steps.warmup_least + self._buffered()
        if self.lockstep:
            return enough and steps >= min(LOCKSTEP_STEPS, self.steps.warmup_most)
        if self._began is not None and time.perf_counter() - self._began < self.orders.skip_s:
            return False
        recompiles = compile_counters()[0]
        if recompiles != self._recompiles:
            self._recompiles = recompiles
            self._warm_from = len(self.loop.steps)
            return False
        times = [step.train_s for step in self.loop.steps[max(1, self._warm_from) :]]
        long = len(times) >= self.steps.warmup_most + self._buffered()
        return enough and (long or stable(times) or sum(times) > self.orders.warmup_max_s)

    def _in_window(self, step: Step, closing: bool) -> None:
        self.window.step(step)
        if other_profiler():
            self.profiler = True
        if closing:
            self.window.ends()
            self.phase = "sample"
            self.sampler = StackSampler(lambda: self.loop.record.evaluation)
            self.sampler.start()
            self.workers.start()
            self._sampling_began = time.perf_counter()

    def _in_sample(self, step: Step, closing: bool) -> None:
        self._sampled.append(step)
        if self.sampler is not None:
            self.sampler.step_ends()
        steps = len(self._sampled)
        if self.lockstep:
            enough = steps >= self.steps.window_least
        else:
            long_enough = time.perf_counter() - self._sampling_began >= SAMPLE_S
            least, most = self.steps.sample_least, self.steps.sample_most
            enough = steps >= most or (steps >= least and long_enough)
        if not enough:
            return
        self._end_sampling()
        self.phase = "record"
        self._record_times()

    def _end_sampling(self) -> None:
        if self.sampler is not None:
            self.sampler.stop()
            self._worker_pids = self.loop.loaders.workers() or self._worker_pids
            self.workers.stop()

    def _record_times(self) -> None:
        """Begin if the loader's pass goes on long enough; else with a later step."""
        steps = self.steps.record
        if self.orders.known_steps is not None or self.loop.room_for(self._warmup() + steps):
            self._record(steps, detail=False)

    def _warmup(self) -> int:
        """Steps after a pause: a cold one, and those for which workers had extra time."""
        return 1 + self._buffered()

    def _buffered(self) -> int:
        """Batches that workers may have ready; a short run has no steps to wait for their end."""
        return self.loop.record.buffered() if self.orders.known_steps is None else 0

    def _record(self, steps: int, detail: bool) -> None:
        """Begin to record, after a warm-up."""
        if self._wait_for_profiler():
            if not detail:
                self._back()
            return
        warmup = 1 if detail else self._warmup()
        self._recording = ProfilerRecording(self.job.device, steps, warmup, detail)
        self._recording.start()

    def _back(self) -> None:
        """The script's own profiler came in between: start again when it is over."""
        self.profiler = True
        self._attempts += 1
        self._recording = None
        self._recorded = []
        self.phase = "again"
        if self._attempts >= ATTEMPTS:
            self._finish()

    def _in_again(self, step: Step, closing: bool) -> None:
        if not self._wait_for_profiler() and not self._over:
            self.phase = "record"
            self._record_times()

    def _in_record(self, step: Step, closing: bool) -> None:
        recording = self._recording
        if recording is None:
            self._record_times()
            return
        if recording.yielded:
            self._back()
            return
        if recording.recording:
            self._recorded.append(step)
        if recording.step():
            self._save_times(recording)
            self.phase = "detail"
            if self.steps.detail:
                self._record(self.steps.detail, detail=True)

    def _save_times(self, recording: ProfilerRecording) -> None:
        path = os.path.join(self.recorder.folder, f"times-{os.getpid()}")  # noqa: PTH118
        self.trace = recording.save(path)
        self._recording = None

    def _in_detail(self, step: Step, closing: bool) -> None:
        recording = self._recording
        if recording is not None and not recording.yielded:
            if not recording.step():
                return
            self._save_detail(recording)
        self.phase = "flops"
        if not self.count.begin():
            self._finish()

    def _save_detail(self, recording: ProfilerRecording) -> None:
        path = os.path.join(self.recorder.folder, f"detail-{os.getpid()}")  # noqa: PTH118
        self.detail_trace = recording.save(path)
        self._recording = None

    def _in_flops(self, step: Step, closing: bool) -> None:
        if not self.count.step(step):
            self._finish()

    def program_ends(self) -> None:
        """Report what exists: an interrupted window is better than none."""
        if self._over:
            return
        self.recorder.safely("profile: count", self.count.end)
        self.recorder.safely("profile: end", self._cut_short)
        self._over = True
        self._take_out()
        self._report("program")

    def _cut_short(self) -> None:
        if self.phase == "window":
            self.window.ends()
        recording = self._recording
        if recording is None or recording.yielded:
            return
        recording.stop()
        if recording.recorded and self.phase == "record":
            self._save_times(recording)
        elif recording.recorded and self.phase == "detail":
            self._save_detail(recording)

    def _finish(self) -> None:
        """Remove everything and report; then the program goes on alone, or ends.

        This waits while the script's own profiler runs, which would record thousands of our calls.
        """
        if self._over:
            return
        if other_profiler() and self._waited <= PROFILED_STEPS:
            self.phase = "ending"
            return
        self._over = True
        self._take_out()
        self._report("window")
        if self.orders.stop:
            end_process(self.recorder)

    def _in_ending(self, step: Step, closing: bool) -> None:
        self._waited += 1
        self._finish()

    def _take_out(self) -> None:
        self.recorder.safely("profile: samples", self._end_sampling)
        self.recorder.safely("profile: workers", self.workers.remove)
        if self._recording is not None:
            self.recorder.safely("profile: stop", self._recording.stop)
        self.recorder.safely("profile: count", self.count.end)
        self.recorder.safely("profile: profilers", self._restore_profilers)
        self.recorder.safely("profile: leave", self.leave)
        self.recorder.safely("profile: window", self.window.remove)
        self.recorder.safely("profile: loop", self.loop.remove)

    def _report(self, reason: wire.EndReason) -> None:
        self.booster.report()
        summary = self.recorder.safely("profile: seen", self._summary)
        step_s = summary.step_s if summary is not None else None
        wait = summary.wait_s / summary.step_s if summary is not None and summary.step_s else None
        facts = self.recorder.safely("profile: job", self.loop.facts, step_s, wait)
        if facts is not None:
            self.recorder.write(wire.JobSeen(facts))
        if summary is not None:
            self.recorder.write(summary)
        stacks = self.recorder.safely("profile: samples", self._stacks)
        if stacks is not None:
            self.recorder.write(stacks)
        measured = self.loop.steps[1:]
        recompiles, breaks = compile_counters()
        self.recorder.write(
            wire.Ended(
                reason=reason,
                steps=self.job.steps,
                samples=sum(step.samples for step in measured),
                train_s=sum(step.train_s for step in measured),
                wait_s=sum(step.wait_s for step in measured),
                peak_bytes=peak_bytes(self.job),
                recompiles=recompiles,
                graph_breaks=breaks,
                backwards=self.job.backwards,
                children=children_started(),
            )
        )

    def _stacks(self) -> wire.HostSeen | None:
        """Where the host's time went, or None if no step was sampled."""
        if self.sampler is None or not self._sampled:
            return None
        steps = len(self._sampled)
        mean_s = sum(step.train_s for step in self._sampled) / steps
        host = self.sampler.summary(steps, mean_s)
        if host is None:
            return None
        return with_workers(host, self.workers.hosts(self._worker_pids))

    def _double_line(self) -> str | None:
        """The line that makes the parameters, or new tensors, float64."""
        flow = self.count.flow
        if flow is None or not (flow.default_double or flow.doubles):
            return None
        wide = flow.default_double or any(row.what == "parameter" for row in flow.doubles)
        return double_line(flow.default_double) if wide else None

    def _checkpointing_line(self) -> str | None:
        """Where a library's activation checkpointing is switched on, if anything is recomputed."""
        flow = self.count.flow
        return checkpointing_line() if flow is not None and flow.recomputed else None

    def _summary(self) -> wire.LoopSeen | None:
        """The summary, or None if no undisturbed step was watched and the script ran no profiler of
        its own.
        """
        if not (self.window.step_count or self.profiler):
            return None
        profiled = self.loop.steps[self._profiled_from :] if self._profiled_from is not None else []
        return self.window.summary(
            recorded=self._recorded,
            trace=self.trace,
            detail_trace=self.detail_trace,
            flops=self.count.flops,
            flow=self.count.flow,
            update=self.count.update,
            double_where=self.recorder.safely("profile: float64", self._double_line),
            checkpointing_where=self.recorder.safely("profile: lines", self._checkpointing_line),
            profiler=self.profiler and not self.trace,
            profiler_where=self.profiler_where,
            profiler_step_s=statistics.fmean(step.train_s for step in profiled)
            if profiled
            else None,
            parameter_bytes=self.recorder.safely("parameters", parameter_bytes, self.job),
            optimizer_bytes=self.recorder.safely("optimizers", optimizer_bytes, self.job),
        )
