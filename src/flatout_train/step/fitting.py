"""Out of memory is not the end: the step is made to fit and repeated.

A call that runs out of memory is undone, what it left behind is freed, and it is repeated in two
parts, in four and so on: the same gradient within rounding, since each part's loss is weighted.
Where `recompute` is "auto" and the model has repeated blocks, the next calls that need a split
run split and with activation checkpointing in turn (see `recomputation`), each for a few real
steps; the fastest per element of the batch is kept. Training continues meanwhile.

The load of one part (elements of the batch's tensors) is remembered: the largest that fitted and
the smallest that did not. So a larger batch is split at once, a smaller one less or not at all, and
a load that did not fit is not tried again in this process, unless it had fitted before: then
something else took the memory, and the call is repeated once unchanged.

A repeated call starts from the same torch random states; Python's and NumPy's are not restored.

Splitting changes what depends on the batch as a whole: batch normalisation sees the parts, and
random numbers (dropout) are drawn differently. Recomputation changes neither.
"""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flatout_agent.speedups import nests
from flatout_agent.speedups.repeated_blocks import repeated_blocks
from flatout_train.errors import UsageError
from flatout_train.out_of_memory import is_out_of_memory as is_out_of_memory
from flatout_train.out_of_memory import let_go
from flatout_train.step import recomputation
from flatout_train.step.optimizer_memory import step_optimizer as step_optimizer
from flatout_train.step.splitting import batch_size, split
from flatout_train.step.ways_to_fit import CallTimer, Contest, Seconds, Way

Attempt = Callable[[list[Any]], Tensor]


class Fit:
    """Makes the steps of one model fit into memory, and remembers how.

    Raises UsageError if `recompute` is True and the model has no repeated blocks.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        recompute: Literal["auto"] | bool | str = "auto",
    ) -> None:
        if recompute not in ("auto", True, False):
            raise UsageError(f'recompute={recompute!r} is unknown: use "auto", True or False')
        self._model, self._device, self._recompute = model, device, recompute
        self._clock = CallTimer(device)
        self._plain = Way("all" if recompute is True else None)
        self._contest: Contest | None = None
        self._policy: recomputation.Policy | None = None
        self._stop: Callable[[], None] = _nothing
        self._unsplit = False
        self.free: Callable[[], bool] = lambda: False
        """Frees memory that steps do not need; called before anything is split. Returns False if
        there was none."""
        self._enter(self._plain)

    def run(self, batch: Any, attempt: Attempt, undo: Callable[[], None]) -> Tensor:
        """The result of `attempt([batch])`, or of `attempt(parts)` if the whole batch does not fit.

        `attempt` runs forward and backward passes of the parts and adds up their weighted
        gradients; `undo` reverts what a failed attempt did to gradients and buffers. Other errors
        of `attempt` pass through. Raises torch.OutOfMemoryError, chained to the device's error,
        if one sample does not fit or the batch cannot be split. A step that several ranks share
        cannot be repeated by one of them: do not run it here.
        """
        load = _load(batch)
        random = random_states(self._device)
        repeated = False
        while True:
            way, parts, share = self._choose(batch, load)
            try:
                end = self._clock.start() if self._contest is not None else None
                loss = attempt([batch] if parts == 1 else split(batch, parts))
            except Exception as error:
                memory = is_out_of_memory(error)
                if not (memory or self._is_candidate(way)):
                    raise
                failure = error
            else:
                self._fitted(way, parts, share, load, end)
                return loss
            undo()
            _set_random_states(self._device, random)
            if not memory:
                way.rejection = _error_line(failure)
            elif self.free():
                pass  # repeat unchanged: what fits without the freed memory is still unknown
            elif repeated or share > way.largest_fitting or self._unsplit:
                self._too_large(failure, way, batch, parts, share)
            else:
                repeated = True
            let_go(failure, self._device)

    @contextlib.contextmanager
    def unsplit(self) -> Iterator[None]:
        """Within it nothing is split or remembered: a call that does not fit is undone
        and raises.
        """
        self._unsplit = True
        try:
            yield
        finally:
            self._unsplit = False

    def close(self) -> None:
        """Restore the model: nothing is recomputed any more."""
        self._stop()
        self._stop, self._policy = _nothing, None

    @property
    def note(self) -> str:
        """The measures that make the steps fit, and why, as text."""
        if self._plain.smallest_failing == math.inf:
            return (
                "recomputes every block: requested" if self._plain.policy else "everything fitted"
            )
        if self._contest is None:
            return f"{self._plain.describe()}: it did not fit at once"
        return f"{self._contest.describe()}: it did not fit at once"

    def _choose(self, batch: Any, load: float) -> tuple[Way, int, float]:
        """The way for this batch, the number of parts, and the load of the largest part."""
        contest = self._contest
        if self._unsplit:
            way = self._plain if contest is None or contest.fastest is None else contest.fastest
            self._enter(way)
            return way, 1, load
        if load < self._plain.smallest_failing:
            self._enter(self._plain)
            return self._plain, 1, load
        rows = _rows(batch)
        while True:
            way = self._plain if contest is None else contest.current(load, rows) or self._plain
            if self._enter(way):
                parts = way.parts(load, rows)
                return way, parts, way.share(load, rows, parts)

    def _enter(self, way: Way) -> bool:
        """Switch recomputation to this way's policy; returns False if the model does not support
        it.
        """
        if way.policy == self._policy:
            return True
        self.close()
        if way.policy is None:
            return True
        try:
            self._stop = recomputation.recompute(self._model, way.policy)
        except Exception as error:
            if way is self._plain:
                raise
            way.rejection = _error_line(error)
            return False
        self._policy = way.policy
        return True

    def _blocks(self) -> list[nn.Module]:
        return repeated_blocks(self._model)

    def _is_candidate(self, way: Way) -> bool:
        """Whether its errors may be its own: the user's show when the way as written fails too."""
        contest = self._contest
        return contest is not None and contest.fastest is None and way is not self._plain

    def _fitted(
        self, way: Way, parts: int, share: float, load: float, end: Callable[[], Seconds] | None
    ) -> None:
        if self._unsplit:
            return
        way.largest_fitting = max(way.largest_fitting, share)
        if load >= self._plain.smallest_failing:
            way.last_parts = parts
            if end is not None and self._contest is not None and self._contest.fastest is None:
                way.add_call(end(), load)

    def _too_large(self, error: Exception, way: Way, batch: Any, parts: int, share: float) -> None:
        """Remember that a part was too large; raises if nothing is left to try."""
        if self._unsplit:
            raise error
        way.smallest_failing = min(way.smallest_failing, share)
        if self._contest is None and self._recompute == "auto" and self._blocks():
            policies: tuple[recomputation.Policy, ...] = ("selective", "alternate", "all")
            self._contest = Contest([self._plain, *(Way(policy) for policy in policies)])
        rows, contest = _rows(batch), self._contest
        if parts < rows:
            return
        way.rejection = "one sample does not fit"
        if contest is None or contest.fastest is way or contest.current(_load(batch), rows) is None:
            raise torch.OutOfMemoryError(_too_large(batch, rows, self._device)) from error


def _nothing() -> None:
    pass


def _error_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return textwrap.shorten(f"{type(error).__name__}: {lines[0] if lines else ''}", 160)


def _load(batch: Any) -> float:
    """The size of a batch: the number of elements of all its tensors."""
    return float(sum(tensor.numel() for tensor in nests.tensors(batch)))


def _rows(batch: Any) -> int:
    try:
        return batch_size(batch)
    except UsageError:  # nothing along which to split it
        return 1


def random_states(device: torch.device) -> list[Tensor]:
    """Random states of torch on the CPU and on the device, read without waiting."""
    states = [torch.get_rng_state()]
    if device.type == "mps":
        states.append(torch.mps.get_rng_state())
    elif device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def _set_random_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "mps":
        torch.mps.set_rng_state(states[1])
    elif len(states) > 1:
        torch.get_device_module(device).set_rng_state(states[1], device)


def _too_large(batch: Any, rows: int, device: torch.device) -> str:
    sample = split(batch, rows)[0] if rows > 1 else batch
    shapes = [f"{list(tensor.shape)} {tensor.dtype}" for tensor in nests.tensors(sample)]
    what = ", ".join(shapes[:4]) + (", ..." if len(shapes) > 4 else "")
    subject = f"one sample of the batch's {rows}" if rows > 1 else "a batch that cannot be split"
    return (
        f"{subject} ({what.replace('torch.', '')}) does not fit into the memory of {device} beside "
        'the model. Smaller samples, recompute=True, precision="bf16" or an optimizer with less '
        "state need less"
    )
