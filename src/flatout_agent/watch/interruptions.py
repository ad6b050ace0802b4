"""What a program does between its training steps: it evaluates and saves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent.replacing import replaced
from flatout_agent.watch.tensors import synchronize, tensors_in

if TYPE_CHECKING:
    from flatout_agent.job import Job


class Evaluations:
    """Calls of models outside of training, by pass."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.timed = True
        """Wait for an accelerator where a pass begins and ends; a call there only queues work."""
        self.means_s: list[float] = []
        """Seconds of a call in each pass that has ended."""
        self.with_grad = False
        """In some pass gradients were recorded that were never used."""
        self._began = self._seconds = 0.0
        self._calls = 0
        self._recorded_grad = False

    def call(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One call of the pass under way."""
        if not self._calls:
            self._began = self._clock()
        began = time.perf_counter()
        output = call(*args, **kwargs)
        self._seconds += time.perf_counter() - began
        self._calls += 1
        if any(tensor.requires_grad for tensor in tensors_in(output)):
            self._recorded_grad = True
        return output

    def backward(self) -> None:
        """The gradients of the pass under way are used."""
        self._recorded_grad = False

    def end(self) -> None:
        """Training goes on: the pass, if there was one, is over."""
        if self._calls:
            if self._waits:
                self._seconds = self._clock() - self._began
            self.means_s.append(self._seconds / self._calls)
            self.with_grad = self.with_grad or self._recorded_grad
            self._seconds, self._calls, self._recorded_grad = 0.0, 0, False

    @property
    def _waits(self) -> bool:
        return self.timed and self.job.device != "cpu"

    def _clock(self) -> float:
        if self._waits:
            synchronize(self.job)
        return time.perf_counter()


def watch_saving(
    saved: Callable[[], None], written: Callable[[Any], None] | None = None
) -> Callable[[], None]:
    """Call `saved` before the program saves, and `written` with the file after it has.

    Returns the way back.
    """
    original = torch.save

    def save(*args: Any, **kwargs: Any) -> Any:
        saved()
        result = original(*args, **kwargs)
        if written is not None:
            written(args[1] if len(args) > 1 else kwargs.get("f"))
        return result

    save.__wrapped__ = original  # type: ignore[attr-defined]  # functions take attributes
    return replaced(torch, "save", save)
