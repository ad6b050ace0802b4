"""Sums and joins of large tensors on CPUs through memory that all ranks of a machine share.

gloo sends them through sockets, in a ring. Here each rank writes its own values into a buffer that
the others read. A message of gloo's says that all have written: it also orders what they have
written before what the others read, on every processor.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

FOLDER = "/dev/shm"
PREFIX = "flatout-ranks-"
LEAST_BYTES = 2**16
"""Smaller messages take what a message of gloo's takes anyway."""
BUFFER_BYTES = 2**23
"""Of each of a rank's two buffers; what is larger goes in parts."""
MOST_RANKS = 8
"""Each rank reads what all have written: with many, a ring moves less."""


class SharedMemory:
    """Two buffers for each rank, in turn: who writes into one has met all others since it was read.

    Raises OSError where there is no such memory, or too little of it.
    """

    def __init__(self, rank: int, size: int, name: str) -> None:
        """name: the same in all ranks and in no other run."""
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        self._paths = [f"{FOLDER}/{PREFIX}{digest}-{each}" for each in range(size)]
        self.rank, self.size = rank, size
        self._buffers: list[list[torch.Tensor]] = []
        """Of each rank, as bytes."""
        self._turn = 0
        self._make()

    def _make(self) -> None:
        if sys.platform != "linux":
            raise OSError(f"no {FOLDER} on this system")
        descriptor = os.open(self._paths[self.rank], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Set aside now: without it a full memory would end the program by SIGBUS later.
            os.posix_fallocate(descriptor, 0, 2 * BUFFER_BYTES)
        except OSError:
            self.unlink()
            raise
        finally:
            os.close(descriptor)

    def open(self) -> None:
        """Map the buffers of all ranks, which have made theirs."""
        for path in self._paths:
            descriptor = os.open(path, os.O_RDWR)
            try:
                whole = torch.frombuffer(mmap.mmap(descriptor, 2 * BUFFER_BYTES), dtype=torch.uint8)
            finally:
                os.close(descriptor)
            self._buffers.append([whole[:BUFFER_BYTES], whole[BUFFER_BYTES:]])

    def unlink(self) -> None:
        """Take this rank's name off; the memory stays until no rank maps it."""
        with suppress(OSError):
            os.unlink(self._paths[self.rank])  # noqa: PTH108

    def sum_(self, tensor: torch.Tensor, meet: Callable[[], None]) -> None:
        """Make `tensor` (contiguous) the sum over the ranks, in place; meet: waits for all."""
        flat = tensor.view(-1)
        for part in torch.split(flat, BUFFER_BYTES // tensor.element_size()):
            first, *others = self._written(part, meet)
            # In the order of the ranks, so that all have the same last digit.
            torch.add(first, others[0], out=part)
            for other in others[1:]:
                part.add_(other)

    def joined(
        self, rows: torch.Tensor, lengths: Sequence[int], meet: Callable[[], None]
    ) -> torch.Tensor:
        """All ranks' values one after the other; lengths: how many each has, BUFFER_BYTES at most.

        rows: this rank's own, contiguous and flat.
        """
        written = self._written(rows, meet, lengths)
        return torch.cat(written)

    def _written(
        self, own: torch.Tensor, meet: Callable[[], None], lengths: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        """What each rank has written this time, to be read before the next time but one."""
        parts = self.parts(own.dtype, lengths or [own.numel()] * self.size)
        parts[self.rank].copy_(own)
        meet()
        return parts

    def parts(self, dtype: torch.dtype, lengths: Sequence[int]) -> list[torch.Tensor]:
        """Each rank's next buffer for so many values, BUFFER_BYTES at most.

        This rank writes its own, and reads all when the ranks have met: before the next time but
        one.
        """
        turn, self._turn = self._turn, 1 - self._turn
        return [
            buffers[turn][: length * dtype.itemsize].view(dtype)
            for buffers, length in zip(self._buffers, lengths, strict=True)
        ]
