"""Wait for a program to train that may never do so. Light to import: each start of Python does.

torch is not imported for it. Nothing is looked at but backward passes, and after the first one the
next call of a model. What goes wrong here costs a speed-up, never the import of torch or a step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flatout_agent.attach import importing
from flatout_agent.attach.replacing import replaced


def before_training(call: Callable[[], None]) -> None:
    """Call `call` once, when this process has begun to train.

    That is before the first call of a model that follows a backward pass. Where there are only
    backward passes, before the second one. torch need not be imported, and is not.
    """
    awaited = _TrainingAwaited(call)

    def torch_imported(torch: Any) -> None:
        with suppress(Exception):  # it may be something else of that name
            awaited.stand_before_backward(torch)

    importing.after_import({"torch": torch_imported})


class _TrainingAwaited:
    """Stands before backward passes, and after the first one before the calls of models."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._over = self._stands_before_calls = False

    def stand_before_backward(self, torch: Any) -> None:
        self._torch = torch
        backward = torch.autograd.backward

        def passed(*args: Any, **kwargs: Any) -> Any:
            if self._over or self._inside_backward():
                return backward(*args, **kwargs)
            if self._stands_before_calls:
                self._begin()
                return torch.autograd.backward(*args, **kwargs)  # which may be another one now
            result = backward(*args, **kwargs)
            with suppress(Exception):
                self._stand_before_calls()
            return result

        self._removals = [replaced(torch.autograd, "backward", passed)]

    def _inside_backward(self) -> bool:
        """Activation checkpointing has calls, and backward passes, within a backward pass."""
        task = getattr(self._torch._C, "_current_graph_task_id", None)
        return task is not None and task() != -1

    def _stand_before_calls(self) -> None:
        module = self._torch.nn.Module
        original = module.__call__

        # torch's profiler reads `self` in the frame of this function.
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if awaited._over or compiling() or awaited._inside_backward():
                return original(self, *args, **kwargs)
            awaited._begin()
            return module.__call__(self, *args, **kwargs)  # which may be another one now

        awaited, compiling = self, self._torch.compiler.is_compiling
        self._stands_before_calls = True
        self._removals.append(replaced(module, "__call__", __call__))

    def _begin(self) -> None:
        self._over = True
        for remove in self._removals:
            remove()
        with suppress(Exception):
            self._call()
