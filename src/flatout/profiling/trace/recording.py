"""Recording: one trace as columns, one row for each event that has a duration."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Category(enum.IntEnum):
    """The kind of an event. The device's own work is KERNEL to MEMSET."""

    OPERATOR = 0
    PYTHON = 1
    """A frame of a Python stack."""
    ANNOTATION = 2
    """ProfilerStep#7, Optimizer.step#SGD.step, the user's record_function."""
    RUNTIME = 3
    """Calls of CUDA, HIP, ..."""
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    OTHER = 7


DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


@dataclass(frozen=True)
class Events:
    """Rows in order of begin, the longer first. Times in ns from the begin of the recording.

    -1 means not recorded.
    """

    begin: Ints
    end: Ints
    name: NDArray[np.int32]
    """Index into Recording.names."""
    category: NDArray[np.int8]
    thread: NDArray[np.int32]
    """Index into Recording.threads; for device work: device and stream."""
    external: Ints
    correlation: Ints
    device: NDArray[np.int32]
    stream: NDArray[np.int32]
    moved: Ints
    """Bytes."""
    members: NDArray[np.int32]
    """Ranks of the group that exchanges."""
    occupancy: NDArray[np.float32]
    """Per cent."""
    shapes: NDArray[np.int32]
    """Index into Recording.shapes."""
    dtypes: NDArray[np.int32]
    concrete: NDArray[np.int32]
    """Index into Recording.concrete: the values of inputs that are not tensors."""
    sequence: Ints
    """Autograd's number, the same for a forward operator and its backward."""
    forward_thread: Ints
    """Above 0 in backward operators."""

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True)
class Allocations:
    """Recorded allocations, in order of time."""

    at: Ints
    total: Ints
    """Bytes in use afterwards."""
    accelerator: Flags


@dataclass(frozen=True)
class TraceRecording:
    """One process's trace, as read."""

    path: str
    rank: int
    names: tuple[str, ...]
    threads: tuple[tuple[int | str, int | str], ...]
    """Process and thread."""
    shapes: tuple[str, ...]
    """"32x64, 64x128"."""
    dtypes: tuple[str, ...]
    concrete: tuple[str, ...]
    """JSON."""
    events: Events
    memory: Allocations
    metadata: dict[str, Any] = field(default_factory=dict)
    event_count: int = 0
    """Events in the file, including those that are not rows."""
    truncated: bool = False
    """Whether the file ends early or is damaged."""

    def rows(self, *categories: Category) -> Ints:
        """Rows of these categories."""
        return np.flatnonzero(np.isin(self.events.category, categories))

    def named(self, test: Any) -> Flags:
        """For each name, whether `test(name)` holds; index it with `events.name`."""
        return np.fromiter((bool(test(name)) for name in self.names), np.bool_, len(self.names))
