"""What a program does between its training steps: it evaluates and saves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flatout_agent.watch.tensors import tensors_in


class Evaluations:
    """Calls of models outside of training, by pass."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.means_s: list[float] = []
        """Seconds of a call in each pass that has ended."""
        self.with_grad = False
        """In some pass gradients were recorded that nobody asked for."""
        self._seconds, self._calls = 0.0, 0
        self._recorded_grad = False

    def call(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One call of the pass under way."""
        began = time.perf_counter()
        output = call(*args, **kwargs)
        self._seconds += time.perf_counter() - began
        self._calls += 1
        if any(tensor.requires_grad for tensor in tensors_in(self.torch, output)):
            self._recorded_grad = True
        return output

    def backward(self) -> None:
        """The gradients of the pass under way were asked for."""
        self._recorded_grad = False

    def end(self) -> None:
        """Training goes on: the pass, if there was one, is over."""
        if self._calls:
            self.means_s.append(self._seconds / self._calls)
            self.with_grad = self.with_grad or self._recorded_grad
            self._seconds, self._calls, self._recorded_grad = 0.0, 0, False


def watch_saving(torch: Any, saved: Callable[[], None]) -> Callable[[], None]:
    """Be told when the program saves; returns the way back."""
    own = torch.save

    def save(*args: Any, **kwargs: Any) -> Any:
        saved()
        return own(*args, **kwargs)

    save.__wrapped__ = own  # type: ignore[attr-defined]
    torch.save = save

    def stop() -> None:
        if torch.save is save:
            torch.save = own

    return stop
