"""The whole training step as one CUDA graph: captured once per batch shape, then replayed.

A recording launches the kernels of forward, backward, clipping and optimizer at once, so a step
costs one launch instead of hundreds. It fixes every address, and every number that Python held. So
batches are copied into static buffers, learning rates are tensors on the device, and where other
state in Python would have to change from step to step, nothing is recorded and the reason is
reported.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flatout_agent.speedups import nests
from flatout_train.out_of_memory import is_out_of_memory, let_go
from flatout_train.step.graph.cuda import CudaRecorder
from flatout_train.step.graph.host import Hooks, HostState, Watchers, refusal
from flatout_train.step.graph.kinds import describe, difference
from flatout_train.step.graph.placement import Placement
from flatout_train.step.graph.program import Program
from flatout_train.step.graph.rates import Rates
from flatout_train.step.graph.recording import StepRecording

Body = Callable[[Any], dict[str, Tensor]]
Key = tuple[Hashable, int]
"""The kind of step (batch, rates, flags), and the number of the program's own values."""

EAGER_STEPS = 2
"""Steps of one shape that the caller runs before the rehearsal: lazy state, autotuning."""
RECORDINGS = 4
"""Most recorded shapes: each recording has its own gradients."""
_PATIENCE = 64
"""Different shapes, none frequent enough to be recorded, after which the search ends."""
_MOVES = 8
"""Times that the model's memory may be replaced, or recordings become outdated after little use,
before recording is abandoned."""
_TRIES = 3
"""Recordings tried while state on the host changes: a loader's thread may draw random numbers."""


class Phase(enum.Enum):
    """The step's state on its way to a recording."""

    WAITING = enum.auto()
    """No recording yet; the next steps lead to one."""
    RECORDED = enum.auto()
    REFUSED = enum.auto()
    """The last step ran without a recording, and the next one like it will too."""


class GraphRecorder(Protocol):
    """The interface to the device: runs a step on a side stream, records one and replays it."""

    def refusal(self) -> str | None: ...
    def rehearse(self, run: Callable[[], Any]) -> tuple[Any, str | None]: ...
    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]: ...
    def renew(self) -> None: ...


class WholeStep:
    """One training step, `body(batch) -> {name: 0-d tensor}`, as a CUDA graph if possible.

    `body` does everything of one optimizer step on the device: gradients to None, forward,
    backward, clipping and `optimizer.step()`; no scheduler, no average, no decision on the host.
    `run(batch)` either does the whole step and returns the body's tensors, or does nothing and
    returns None, so the caller runs `body(batch)`. For each batch shape, the first two steps are
    left to the caller, the third runs on a side stream as `torch.cuda.graph` requires, the fourth
    is recorded and replayed at once, and the rest are replays: each call is one step, none is lost
    or done twice. The next call overwrites the returned tensors.

    Learning rates that a scheduler or the user writes to `optimizer.param_groups` reach the
    recording. Another shape, another value of another hyperparameter, `model.eval()` of a part, a
    frozen parameter or another value that model and loss read (see `graph.program`) lead to another
    recording, up to four; after a `load_state_dict` of the optimizer, or when the model was moved,
    all are recorded again. Gradients stay readable in `.grad` after each call. While model,
    gradients or optimizer have hooks of the program's, which a replay would not call, steps are
    left to the caller.

    `phase` is the current state, `reason` says it in words: "recorded", or why not. `close()`
    frees the recordings and restores the optimizer's flags.
    """

    def __init__(
        self,
        body: Body,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        scheduler: Any = None,
        *,
        loss_fn: Any = None,
        recorder: GraphRecorder | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        self._body, self._model, self._optimizer = body, model, optimizer
        self._loss_fn = loss_fn
        self._program = Program(model, loss_fn)
        self._device = device
        self._recorder: GraphRecorder = recorder or CudaRecorder(device)
        self._rates = Rates(optimizer, device)
        self._watchers, self._hooks = Watchers(optimizer), Hooks(model, optimizer)
        self._refusal = functools.partial(refusal, model, optimizer, device, scheduler)
        self._undo = undo or functools.partial(optimizer.zero_grad, set_to_none=True)
        self._placement: Placement | None = None
        self._recordings: dict[Key, StepRecording] = {}
        self._unused: list[Callable[[], None]] = []
        """Recorded, but never replayed: freed with the others (see `CudaRecorder.renew`)."""
        self._counts: dict[Hashable, int] = {}
        self._active: StepRecording | None = None
        self._moves = self._tries = self._wasted = 0
        problem = self._recorder.refusal() or self._refusal()
        self._over = problem is not None
        self.phase, self.reason = Phase.WAITING, "not yet: no step was run"
        if problem is not None:
            self.phase, self.reason = Phase.REFUSED, problem

    def run(self, batch: Any) -> dict[str, Tensor] | None:
        """Do the whole step and return the body's static tensors, or None if the caller must
        do it.
        """
        if self._over:
            return None
        self._check_memory()
        tensors: list[Tensor] = []
        fits = not self._over and not self._has_hooks()
        signature = self._signature(batch, tensors) if fits else None
        if signature is None:
            self._active = None
            return None
        assert self._placement is not None
        kind = (signature, self._rates.key(), self._placement.flags())
        key = (kind, self._program.number())
        recording = self._find(key)
        if recording is None:
            self._active = None
            return self._approach(key, batch, tensors)
        recording.used += 1
        self.phase, self.reason = Phase.RECORDED, "recorded"
        return self._replay(recording, tensors)

    @contextlib.contextmanager
    def as_recorded(self) -> Iterator[None]:
        """An optimizer's step within it rounds its learning rates to float32, as a replay does.

        So a run that resumes from a checkpoint with eager steps repeats those that were replayed.
        """
        if not self._over:
            self._check_memory()
        if self._over:
            yield
            return
        with self._rates.as_tensors():
            yield

    @property
    def note(self) -> str:
        """`reason`, with "no: " before it if the step does not run as a graph."""
        return f"no: {self.reason}" if self.phase is Phase.REFUSED else self.reason

    @property
    def holds_memory(self) -> bool:
        """Whether there are recordings, each with its activations and gradients."""
        return bool(self._recordings or self._unused)

    def close(self) -> None:
        """Free the recordings and restore the optimizer's flags; `run` returns None from now on."""
        if not self._over:
            self._give_up("closed")

    def _check_memory(self) -> None:
        """Start afresh if parameters, buffers or the optimizer's state were replaced."""
        if self._placement is not None:
            moved = self._placement.moved()
            if moved is None:
                return
            self._moves += 1
            if self._moves > _MOVES:
                self._give_up(f"{moved} is replaced again and again instead of written into")
                return
            self._drop()
            # there may be modules that were not inspected yet
            self._program = Program(self._model, self._loss_fn)
            self._hooks = Hooks(self._model, self._optimizer)
        self._rates.prepare()
        self._placement = Placement(self._model, self._optimizer)

    def _has_hooks(self) -> bool:
        """Whether the program has hooks, so that steps run eagerly."""
        problem = self._hooks.problem()
        if problem is not None:
            self._refuse(problem)
        return problem is not None

    def _signature(self, batch: Any, tensors: list[Tensor]) -> Hashable | None:
        """The batch's structure, shapes and plain values, or None if it cannot be recorded."""
        parts: list[Hashable] = []
        problem = describe(batch, self._device, parts, tensors)
        if problem is not None:
            self._refuse(problem)
            return None
        return tuple(parts)

    def _find(self, key: Key) -> StepRecording | None:
        """The recording of this kind; compared, not hashed: keys are mostly the same objects."""
        for other, recording in self._recordings.items():
            if other == key:
                return recording
        return None

    def _approach(self, key: Key, batch: Any, tensors: list[Tensor]) -> dict[str, Tensor] | None:
        """Take the next step towards a recording of this shape."""
        if len(self._recordings) >= RECORDINGS:
            self._drop_outdated(key)
        if self._over:
            return None
        if len(self._recordings) >= RECORDINGS:
            self._refuse(f"{RECORDINGS} kinds of step are recorded; this one is none of them")
            return None
        kind, _ = key
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if len(self._counts) > _PATIENCE:
            self._stop_looking()
            return None
        if count <= EAGER_STEPS:
            self._wait(f"step {count} of {EAGER_STEPS + 1} before a recording")
            return None
        if count == EAGER_STEPS + 1:
            return self._rehearse(batch)
        return self._record(key, batch, tensors)

    def _drop_outdated(self, key: Key) -> None:
        """Make room: recordings with other values of the program's may never be used again.

        The others are freed too, since one must not be freed alone; each is recorded again, after a
        rehearsal on its new stream.
        """
        outdated = [
            recording for other, recording in self._recordings.items() if other[1] != key[1]
        ]
        if not outdated:
            return
        self._wasted += sum(recording.used < _PATIENCE for recording in outdated)
        counts = {kind: min(count, EAGER_STEPS) for kind, count in self._counts.items()}
        counts |= {kind: EAGER_STEPS for kind, number in self._recordings if number == key[1]}
        self._drop()
        self._counts = counts
        if self._wasted > _MOVES:
            changed = self._program.changed
            self._give_up(f"{changed}, which the model or the loss reads, changes again and again")

    def _stop_looking(self) -> None:
        """Report what differs, as hardly any two steps are alike."""
        first, second = list(self._counts)[-2:]
        reason = difference(first, second)
        if self._recordings:
            self._counts.clear()
            self._refuse(reason)
        else:
            self._give_up(reason)

    def _rehearse(self, batch: Any) -> dict[str, Tensor] | None:
        """A real step on a side stream; if it waits for the device, it cannot be recorded."""
        begun: list[bool] = []
        failure: Exception | None = None
        handle = self._optimizer.register_step_pre_hook(lambda *_: begun.append(True))
        try:
            with self._rates.as_tensors():
                outputs, waits = self._recorder.rehearse(lambda: self._body(batch))
        except Exception as error:
            if begun or not is_out_of_memory(error):
                raise
            failure = error
        finally:
            handle.remove()
        if failure is not None:
            # nothing was applied: the caller does this step, and handles the lack of memory
            self._undo()
            self._give_up("memory ran out on the side stream")
            let_go(failure, self._device)
            return None
        if waits is not None:
            self._give_up(waits)
        else:
            self._wait(f"step {EAGER_STEPS + 1} of {EAGER_STEPS + 1} before a recording")
        return dict(outputs)

    def _record(self, key: Key, batch: Any, tensors: list[Tensor]) -> dict[str, Tensor] | None:
        problem = self._rates.on_host() or self._refusal()
        if problem is not None:
            self._give_up(problem)
            return None
        inputs: list[Tensor] = []
        static = nests.change(batch, lambda tensor: _buffer(tensor, inputs))
        host = HostState(self._model, self._optimizer)
        problem, outputs, replay = self._capture(static)
        moved = host.changed()
        if problem is not None or moved is not None or replay is None:
            host.restore()
            self._tries += 1
            if problem is not None or replay is None or self._tries == _TRIES:
                self._give_up(problem or moved or "")
            else:
                self._unused.append(replay)
                self._wait(moved or "")
            return None
        gradients = [(parameter, parameter.grad) for parameter in host.parameters]
        recording = self._recordings[key] = StepRecording(inputs, outputs, gradients, replay)
        self._counts.pop(key[0])
        self._active = recording
        self.phase, self.reason = Phase.RECORDED, "recorded"
        return self._replay(recording, tensors)

    def _capture(self, static: Any) -> tuple[str | None, Any, Callable[[], None] | None]:
        """What prevented the capture (None if nothing), the static outputs, and how to replay."""
        problems: list[
            str
        ] = []  # not the error, which would hold this frame, and all that it recorded
        failure: Exception | None = None

        def run() -> Any:
            try:
                return self._body(static)
            except Exception as error:
                problems.append(_problem(error))  # the recorder's own clean-up error may hide it
                raise

        try:
            with self._rates.as_tensors(), self._watchers.away():
                outputs, replay = self._recorder.record(run)
        except Exception as error:
            problems.append(_problem(error))
            failure = error
        if failure is None:
            return None, outputs, replay
        let_go(failure, self._device)
        return problems[0], {}, None

    def _replay(self, recording: StepRecording, tensors: list[Tensor]) -> dict[str, Tensor]:
        recording.fill(tensors)
        self._rates.send()
        if self._active is not recording or not recording.has_gradients():
            recording.put_gradients()
            self._active = recording
        self._watchers.before()
        recording.replay()
        self._watchers.after(recording.outputs["loss"])
        return recording.outputs.copy()

    def _drop(self) -> None:
        """Free all recordings at once: freeing one would also free what others still use."""
        self._active = None
        self._counts.clear()
        if self.holds_memory:
            self._recordings.clear()
            self._unused.clear()
            self._recorder.renew()

    def _wait(self, reason: str) -> None:
        self.phase, self.reason = Phase.WAITING, f"not yet: {reason}"

    def _refuse(self, reason: str) -> None:
        self.phase, self.reason = Phase.REFUSED, reason

    def _give_up(self, reason: str) -> None:
        self._over = True
        self._refuse(reason)
        self._drop()
        self._rates.undo()


def _buffer(tensor: Tensor, buffers: list[Tensor]) -> Tensor:
    buffers.append(torch.empty_like(tensor).copy_(tensor))
    return buffers[-1]


def _problem(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"it cannot be recorded: {lines[0]}"
