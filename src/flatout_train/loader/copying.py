"""Batches on the device: the next one is copied while the program uses this one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from flatout_agent.speedups import nests
from flatout_train.devices import moves_itself, to_device

PINNED_FOR = frozenset({"cuda", "xpu"})
"""Device types that copy from page-locked memory asynchronously."""
Mark = TypeVar("Mark")


def on_device(
    batches: Iterator[tuple[Any, Mark]], device: torch.device
) -> Generator[tuple[Any, Mark], None, None]:
    """The batches on `device`, with their marks.

    On CUDA, ROCm and XPU each is copied on a side stream while the one before it is in use.
    """
    if device.type not in PINNED_FOR:
        for batch, mark in batches:
            yield to_device(batch, device), mark
        return
    side = SideStream(device)
    under_way: tuple[Any, Any, Mark] | None = None
    for batch, mark in batches:
        ready, under_way = under_way, (*side.run(partial(_copied, batch, device)), mark)
        if ready is not None:
            yield _taken(ready[0], device, side.join(ready[1])), ready[2]
    if under_way is not None:
        yield _taken(under_way[0], device, side.join(under_way[1])), under_way[2]


def _copied(batch: Any, device: torch.device) -> Any:
    """The batch with its plain tensors copied; other objects follow when needed.

    Only for a plain tensor is it known which streams use its memory.
    """

    def copied(leaf: Any) -> Any:
        if not _is_plain(leaf) or leaf.device.type != "cpu":
            return leaf
        pinned = leaf if leaf.is_pinned() else leaf.pin_memory()
        return pinned.to(device, non_blocking=True)

    return nests.change(batch, copied, moves_itself)


def _taken(batch: Any, device: torch.device, stream: Any) -> Any:
    def taken(leaf: Any) -> Any:
        if _is_plain(leaf) and leaf.device == device:
            leaf.record_stream(stream)  # its memory belongs to the side stream
            return leaf
        return to_device(leaf, device)

    return nests.change(batch, taken, moves_itself)


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout is torch.strided


class SideStream:
    """A second stream of a CUDA, ROCm or XPU device: it copies while the usual one computes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module = torch.get_device_module(device)
        self._stream = self._module.Stream(device)

    def run(self, copy: Callable[[], Any]) -> tuple[Any, Any]:
        """(the result of `copy`, the event that marks its end), without waiting."""
        with self._module.stream(self._stream):
            return copy(), self._stream.record_event()

    def join(self, event: Any) -> Any:
        """Let the current stream wait for the event, and return that stream.

        The caller records it on each tensor (`record_stream`), as their memory belongs to the side
        stream.
        """
        stream = self._module.current_stream(self.device)
        stream.wait_event(event)
        return stream
