"""Recordings without a GPU: operators are noted on the CPU, and made again into the same memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flatout_agent.speedups.graphs import aliases

Result = TypeVar("Result")


class Tape(TorchDispatchMode):
    """Notes each operator, below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []
        self.made: list[torch.Tensor] = []
        """Tensors with memory that was allocated here."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensors = _tensors(result)
        taken = {tensor.data_ptr() for tensor in _tensors((args, kwargs))}
        self.made += [tensor for tensor in tensors if tensor.data_ptr() not in taken]
        self.entries.append((func, args, kwargs, tensors))
        return result

    def replay(self) -> None:
        """Do all of it again, in the mode in which it was done: an LSTM's kernel asks for it."""
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
            for func, args, kwargs, tensors in self.entries:
                for old, new in zip(tensors, _tensors(func(*args, **kwargs)), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)

    def spoil(self) -> None:
        """Another pass has used this memory."""
        for tensor in self.made:
            if tensor.is_floating_point():
                tensor.fill_(math.nan)


def _tensors(nest: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(nest)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


class Tapes:
    """A recorder. Its passes share one memory: the forward pass spoils what the backward left."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        yield

    def record(self, work: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        tape = Tape()
        self.tapes.append(tape)
        with tape, mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
            result = work()

        def replay() -> None:
            if tape is self.tapes[0]:
                for other in self.tapes[1:]:
                    other.spoil()
            tape.replay()

        return result, replay


class Capture:
    """Records on tapes; keeps count of it."""

    def __init__(self, factor: float = 1.0) -> None:
        """factor: a wrong recording gives so many times what it should."""
        self.factor = factor
        self.recorded: list[Any] = []

    def __call__(self, whole: Any, samples: tuple[Any, ...]) -> Callable[..., Any]:
        graphed = aliases.record(whole, samples, Tapes())
        self.recorded.append(samples)
        if self.factor == 1.0:
            return graphed
        return lambda *tensors, again: tuple(
            item * self.factor for item in graphed(*tensors, again=again)
        )
