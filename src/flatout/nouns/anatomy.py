"""Anatomy: where a step's time goes, in parts that add up to the whole."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What a part of the step is spent on. On an accelerator: of its time; on a CPU: of the host's.

    `WAITS` are the times in which the device that trains does nothing that was recorded.
    """

    TENSOR_CORES = "matmul-tensor-cores"
    """Matrix products, convolutions among them, on tensor cores (AMD: matrix cores)."""
    MATMUL = "matmul"
    """The other ones; on a CPU all of them."""
    ATTENTION = "attention"
    """Fused attention kernels."""
    NORMALISATION = "normalisation"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    """Sums, softmax, losses, sorting, gathering from embeddings."""
    OPTIMIZER = "optimizer"
    CONVERSION = "conversion"
    """Layout and dtype conversions, copies on the device itself."""
    COPY = "copy"
    """Between host and device, while nothing computes."""
    COMMUNICATION = "communication"
    """Between devices, while nothing computes: exposed."""
    OTHER = "other"
    """Kernels and operators that no rule knows."""
    PYTHON = "python"
    """On a CPU: between operators; where stacks were sampled, the next five stand instead."""
    DISPATCH = "dispatch"
    """On a CPU: between operators, in torch's Python and its dispatch."""
    USER = "user-python"
    """On a CPU: in the user's own Python."""
    LIBRARY = "libraries"
    """On a CPU: in other packages than torch."""
    COLLECTING = "garbage-collection"
    """On a CPU: in Python's garbage collector."""
    BLOCKED = "blocked"
    """On a CPU: waiting for something else than a batch: a file, a lock, another process, sleep."""
    WAIT_DATA = "wait-data"
    WAIT_HOST = "wait-host"
    """The host launches kernels more slowly than the device runs them."""
    WAIT_SYNC = "wait-sync"
    """The host waited for the device, which ran dry until the next launch arrived."""
    WAIT_RANKS = "wait-ranks"
    WAIT_OTHER = "wait-other"
    WAIT_QUEUED = "wait-queued"
    """Between kernels that were queued already: each takes the device some microseconds to start.
    """
    UNRECORDED = "unrecorded"
    """The device had work of which the trace has no record: parts of CUDA graphs, events left out.
    """


CALLING = (Kind.PYTHON, Kind.DISPATCH)
"""Where a CPU trains: calling operators, and what else is not told from it."""
HOST_PARTS = (*CALLING, Kind.USER, Kind.LIBRARY, Kind.COLLECTING, Kind.BLOCKED)
"""Where a CPU trains: what is between operators."""
WAITS = (
    Kind.WAIT_DATA,
    Kind.WAIT_HOST,
    Kind.WAIT_SYNC,
    Kind.WAIT_RANKS,
    Kind.WAIT_OTHER,
    Kind.WAIT_QUEUED,
    Kind.UNRECORDED,
)
IDLE = tuple(kind for kind in WAITS if kind is not Kind.UNRECORDED)
"""In which the device certainly does nothing."""


@dataclass(frozen=True)
class Part:
    """One part; all figures are means over the recorded steps, for one step."""

    kind: Kind
    ms: float
    launches: float = 0.0
    """Kernels (on a CPU: operators)."""
    flops: float | None = None
    """Floating-point operations, or None if not counted."""
    bytes: float | None = None
    """Bytes read and written, or None if unknown."""
    ceiling: float | None = None
    """The share reached of the measured ceiling that binds this kind, or None if unknown."""


@dataclass(frozen=True)
class Anatomy:
    """One step of one process."""

    device: str
    """cuda, cpu, ...: where it trains. ROCm is cuda."""
    step_ms: float
    parts: tuple[Part, ...]
    """The largest first; their `ms` add up to `step_ms`."""
    steps: int
    """Recorded steps."""
    recording_ms: float = 0.0
    """What the recording itself added to a step; taken off the host's parts."""
    host_ms: float | None = None
    """Where an accelerator trains: what the host itself takes for a step, without waiting for the
    device; as recorded, which takes longer. None: not known."""
    hidden_communication_ms: float = 0.0
    """Between devices while something computes: no part of the step's time."""
    overlapped_copy_ms: float = 0.0
    """Between host and device while something computes."""
    flops: float | None = None
    """Floating-point operations of one step."""
    mfu: float | None = None
    """Share of the measured matmul ceiling that the step reaches with these."""
    cores_busy: float | None = None
    """Mean number of cores that this process kept busy."""
    cores: int | None = None

    def part(self, *kinds: Kind) -> float:
        """Milliseconds of these kinds together."""
        return sum(part.ms for part in self.parts if part.kind in kinds)

    @property
    def busy_ms(self) -> float:
        """When the device did something, copies and communication included."""
        return self.step_ms - self.part(*WAITS)

    def share(self, *kinds: Kind) -> float:
        """Their share of the step."""
        return self.part(*kinds) / self.step_ms if self.step_ms else 0.0
