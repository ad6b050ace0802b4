"""Copying batches to the device while it still computes on earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import torch

from flatout_agent.speedups import nests
from flatout_agent.speedups.side_stream import SideStream
from flatout_train.devices import moves_itself, to_device

Mark = TypeVar("Mark")


class Copier(Protocol):
    """How a batch is copied to the device: started early, finished when it is needed."""

    depth: int
    """Most batches in flight."""

    def start(self, batch: Any) -> Any: ...
    def finish(self, started: Any) -> Any: ...


class Plainly:
    """For devices without streams: batches are copied when they are needed."""

    depth = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self, batch: Any) -> Any:
        return batch

    def finish(self, started: Any) -> Any:
        return to_device(started, self._device)


class SideStreamBatches:
    """Copies from pinned memory on a side stream, on CUDA, ROCm and XPU."""

    def __init__(self, device: torch.device, depth: int) -> None:
        self.depth = depth
        self._device = device
        self._side = SideStream(device)

    def start(self, batch: Any) -> Any:
        copied, event = self._side.run(lambda: nests.change(batch, self._copied, moves_itself))
        return batch, copied, event

    def finish(self, started: Any) -> Any:
        _, copied, event = started
        stream = self._side.join(event)
        return nests.change(copied, lambda leaf: self._taken(leaf, stream), moves_itself)

    def _copied(self, leaf: Any) -> Any:
        if not _records_streams(leaf):
            return leaf
        if not isinstance(leaf, torch.Tensor):
            return to_device(leaf, self._device)
        if leaf.device == self._device:
            return leaf
        # Not by Tensor.to: under `flatout run` the device-prefetch boost would copy it again.
        return torch.empty_like(leaf, device=self._device).copy_(leaf, non_blocking=True)

    def _taken(self, leaf: Any, stream: Any) -> Any:
        """The leaf on the stream that uses it; copies what could not use the side stream."""
        if not _records_streams(leaf):
            return to_device(leaf, self._device)
        return _record(leaf, self._device, stream)


def _records_streams(leaf: Any) -> bool:
    """Whether the streams that use its memory can be recorded (`record_stream`).

    Objects that hide their tensors (Hugging Face's `BatchEncoding`), and sparse and nested tensors,
    do not support it: on a side stream, their memory would be reused while it is still read.
    """
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is torch.strided
    return hasattr(leaf, "record_stream") or hasattr(leaf, "_asdict")


def _record(leaf: Any, device: torch.device, stream: Any) -> Any:
    """Record the stream: the memory belongs to the side stream, and the allocator must know."""
    if isinstance(leaf, torch.Tensor):
        if leaf.device == device:
            leaf.record_stream(stream)
    elif hasattr(leaf, "record_stream"):
        leaf.record_stream(stream)
    elif hasattr(leaf, "_asdict"):  # PackedSequence
        for field in filter(moves_itself, leaf):
            _record(field, device, stream)
    return leaf


def copier(device: torch.device, depth: int) -> Copier:
    """The copier to `device`, with at most `depth` batches in flight where it has streams."""
    if device.type in ("cuda", "xpu") and depth:
        return SideStreamBatches(device, depth)
    return Plainly(device)


class PrefetchedBatches(Generic[Mark]):
    """Batches on the device, up to `copier.depth` of them fetched ahead of time.

    Each call fetches at most two, so that the first batch is not delayed until all of them have
    arrived. An error in fetching is raised in its batch's turn, after the batches before it.
    """

    def __init__(self, batches: Iterator[tuple[Any, Mark]], copier: Copier) -> None:
        self._batches = batches
        self._copier = copier
        self._under_way: deque[Callable[[], tuple[Any, Mark]]] = deque()
        self._over = False

    def __iter__(self) -> PrefetchedBatches[Mark]:
        return self

    def __next__(self) -> tuple[Any, Mark]:
        for _ in range(2):
            if not self._over and len(self._under_way) <= self._copier.depth:
                self._under_way.append(self._fetched())
        if not self._under_way:
            raise StopIteration
        return self._under_way.popleft()()

    def _fetched(self) -> Callable[[], tuple[Any, Mark]]:
        try:
            batch, mark = next(self._batches)
            started = self._copier.start(batch)
        except Exception as error:
            self._over = True
            return _Raise(error)
        return lambda: (self._copier.finish(started), mark)


class _Raise:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self) -> Any:
        error = self._error
        del self._error
        try:
            raise error
        finally:
            del error  # its traceback holds this frame: the workers would outlive the loader
