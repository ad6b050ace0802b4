"""How the processes of a distributed training run agree about checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from flatout_agent.ranks import agreeing, going_on
from flatout_train.errors import CheckpointError

_MAX: Any = getattr(getattr(dist, "ReduceOp", None), "MAX", None)
"""Missing if torch has no torch.distributed."""
_Value = TypeVar("_Value")

CARRIED = "ranks"
"""Key of the state that ranks of `flatout run --ranks` take over."""
EAGER_S = 0.5
"""Approximate seconds between two exchanges of the ranks."""


class CheckpointRanks:
    """The ranks of this training run; a single rank if torch.distributed is not in use.

    Created on every rank at the same point: it opens two groups on the CPU (gloo), one for the
    thread that writes and one for the training loop, so that neither blocks the other.
    """

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if joined else 1
        self.rank = dist.get_rank() if joined else 0
        self.writes = joined or agreeing.rank() == 0
        """Those of `flatout run --ranks` all have the same state: rank 0 alone writes it."""
        self._regions = not joined
        """Whether random numbers inside the model may be those of `flatout run --ranks`."""
        self._maxima = None if joined else agreeing.maxima()
        self.writing: Any = None
        self.loop: Any = None
        if joined:
            self.writing = dist.new_group(backend="gloo")
            self.loop = dist.new_group(backend="gloo")

    def gather(self, value: Any, group: Any = None) -> list[Any]:
        """The values of all ranks, on every rank; by default through the loop's group."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=group or self.loop)
        return values

    def together(self, act: Callable[[], _Value], group: Any = None) -> list[_Value]:
        """The result of `act` on each rank; if it fails on one, all of them raise an error."""
        value, failed = None, None
        try:
            value = act()
        except Exception as error:
            failed = error
        outcomes = self.gather((value, None if failed is None else str(failed)), group)
        if failed is not None:
            raise failed
        for rank, (_, problem) in enumerate(outcomes):
            if problem is not None:
                raise CheckpointError(f"rank {rank}: {problem}")
        return [value for value, _ in outcomes]

    def from_first(self, act: Callable[[], _Value], group: Any = None) -> _Value:
        """The result of `act`, called only on rank 0; every rank gets it."""
        values = self.together(lambda: act() if self.rank == 0 else None, group)
        value: Any = values[0]
        return value  # type: ignore[no-any-return]

    def agreement(self) -> Agreement | None:
        """The agreement among ranks, or None if there is nobody to agree with.

        The ranks of `flatout run --ranks` each have all of the state, but must save and end at the
        same step: none may leave before rank 0 has saved.
        """
        if self.size > 1:
            group = self.loop
            return Agreement(lambda note: dist.all_reduce(note, _MAX, group, True).wait)
        return Agreement(self._maxima) if self._maxima is not None else None

    def carried(self) -> dict[str, Any]:
        """State in a checkpoint besides the random states, so ranks continue as they would have."""
        state = going_on.state() if self._regions else None
        return {} if state is None else {CARRIED: state}

    def go_on(self, states: dict[str, Any]) -> str:
        """Take that state over; returns what differs from a run without the interruption."""
        return going_on.resume(states.get(CARRIED)) if self._regions else ""

    def wait_for_all(self) -> None:
        """Wait until all ranks have read: rank 0 might already save the same step again."""
        if self._maxima is not None:
            self._maxima(torch.tensor([0]))()

    def check_alike(self, step: int, folder: object) -> None:
        """Raise CheckpointError if ranks that each read the folder see different checkpoints.

        step: the step of the newest, or 0 if there is none.
        """
        if self._maxima is None:
            return
        note = torch.tensor([step, -step])
        self._maxima(note)()
        most, least = int(note[0]), -int(note[1])
        if most != least:
            raise CheckpointError(
                f"the ranks see different checkpoints in {folder}: the newest is of step {most} "
                f"for one and of step {least} for another. Pass a folder that all nodes see"
            )


class Agreement:
    """Lets all ranks act at the same step on facts that only some of them have (a signal, a clock).

    Every few steps each rank starts an all-reduce of its facts and reads the previous result, which
    has long arrived: nothing waits. The interval, about `EAGER_S`, is agreed in the same way.
    """

    def __init__(self, start_max: Callable[[torch.Tensor], Callable[[], Any]]) -> None:
        """start_max: starts to make a tensor the ranks' maximum, and returns a function that waits
        for it.
        """
        self._start_max = start_max
        self._under_way: tuple[Callable[[], Any], torch.Tensor] | None = None
        self._before: tuple[int, float] | None = None
        self._apart = 1
        self.next_at = 0
        """The step at which to call `meet` again, on all ranks."""

    def meet(self, done: int, *facts: int) -> list[int]:
        """Send `facts` (their maximum over all ranks counts); returns the previous maxima."""
        maxima = [0] * len(facts)
        if self._under_way is not None:
            wait, last = self._under_way
            wait()
            *maxima, self._apart = last.tolist()
        note = torch.tensor([*facts, self._wanted(done)])
        self._under_way = self._start_max(note), note
        self.next_at = done + self._apart
        return maxima

    def _wanted(self, done: int) -> int:
        now = time.monotonic()
        before, self._before = self._before, (done, now)
        if before is None or now <= before[1]:
            return 1
        rate = (done - before[0]) / (now - before[1])
        return max(1, min(1000, round(rate * EAGER_S)))
