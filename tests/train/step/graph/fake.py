"""A CPU stand-in for CUDA graphs: records the kernels of a step, plays them on the same memory.

As on the device, recording runs the Python of a step once, leaves every tensor that existed
before as it was, and a replay runs the recorded kernels only: Python's numbers stay what they were.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FakeRecorder:
    """`tensors`: every tensor that a recording must leave as it was."""

    def __init__(self, tensors: Callable[[], Iterable[Tensor]]) -> None:
        self._tensors = tensors
        self.rehearsals = self.recordings = self.replays = 0
        self.waits: str | None = None
        self.error: Exception | None = None
        self._generation = Generation()

    def refusal(self) -> str | None:
        return None

    def rehearse(self, run: Callable[[], Any]) -> tuple[Any, str | None]:
        self.rehearsals += 1
        if self.error is not None:
            raise self.error
        return run(), self.waits

    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        self.recordings += 1
        before = [(tensor, tensor.detach().clone()) for tensor in self._tensors()]
        random = torch.get_rng_state()
        graph = Graph(self._generation)
        try:
            with graph.kernels:
                outputs = run()
        except Exception:
            self.renew()
            raise
        finally:
            for tensor, value in before:
                tensor.data.copy_(value)
            torch.set_rng_state(random)

        def replay() -> None:
            self.replays += 1
            graph.replay()

        return outputs, replay

    def renew(self) -> None:
        self._generation = Generation()


class Generation:
    """Recordings of one pool and one stream."""

    def __init__(self) -> None:
        self.alive = self.freed = 0

    def enter(self, graph: Graph) -> None:
        if self.freed and not self.alive:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self.alive += 1
        weakref.finalize(graph, self._free)

    def _free(self) -> None:
        self.alive -= 1
        self.freed += 1


class Graph:
    """One recording; the first of a generation that is freed takes what all have recorded."""

    def __init__(self, generation: Generation) -> None:
        self.kernels, self._generation = Kernels(), generation
        generation.enter(self)

    def replay(self) -> None:
        if self._generation.freed:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.kernels.play()


class Kernels(TorchDispatchMode):
    """The operations below autograd, in order, with the tensors that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def play(self) -> None:
        for func, args, kwargs, recorded in self.calls:
            for old, new in zip(
                tree_leaves(recorded), tree_leaves(func(*args, **kwargs)), strict=True
            ):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
