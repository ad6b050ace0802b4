"""Anatomy: where a step's time goes, in parts that add up to the whole."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What a part of the step is spent on: of the accelerator's time, or of the CPU's.

    `WAITS` are times in which the training device does no recorded work.
    """

    TENSOR_CORES = "matmul-tensor-cores"
    """Matrix products, convolutions among them, on tensor cores (AMD: matrix cores)."""
    MATMUL = "matmul"
    """Other matrix products; on a CPU all of them."""
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
    """Kernels and operators that match no rule."""
    PYTHON = "python"
    """On a CPU: between operators; if stacks were sampled, the next five replace it."""
    DISPATCH = "dispatch"
    """On a CPU: between operators, in torch's Python and its dispatch."""
    USER = "user-python"
    """On a CPU: in the user's own Python."""
    LIBRARY = "libraries"
    """On a CPU: in packages other than torch."""
    COLLECTING = "garbage-collection"
    """On a CPU: in Python's garbage collector."""
    BLOCKED = "blocked"
    """On a CPU: waiting for anything but a batch: a file, a lock, another process, sleep."""
    WAIT_DATA = "wait-data"
    WAIT_HOST = "wait-host"
    """The host launches kernels more slowly than the device runs them."""
    WAIT_SYNC = "wait-sync"
    """The host waited for the device, which ran dry until the next launch arrived."""
    WAIT_RANKS = "wait-ranks"
    WAIT_OTHER = "wait-other"
    WAIT_QUEUED = "wait-queued"
    """Between kernels already queued: the device takes some microseconds to start each.
    """
    UNRECORDED = "unrecorded"
    """The device had work that the trace does not record: parts of CUDA graphs, lost events.
    """


CALLING = (Kind.PYTHON, Kind.DISPATCH)
"""If a CPU trains: calling operators, and whatever cannot be told apart from it."""
HOST_PARTS = (*CALLING, Kind.USER, Kind.LIBRARY, Kind.COLLECTING, Kind.BLOCKED)
"""If a CPU trains: the time between operators."""
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
"""Times in which the device certainly does nothing."""


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
    """What the recording added to a step; it is subtracted from the host's parts."""
    host_ms: float | None = None
    """Time the host itself takes for a step, without waiting for the accelerator, or None if
    unknown. It is as recorded: recording makes it longer."""
    hidden_communication_ms: float = 0.0
    """Between devices while something computes; not part of the step's time."""
    overlapped_copy_ms: float = 0.0
    """Between host and device while something computes."""
    flops: float | None = None
    """Floating-point operations of one step."""
    mfu: float | None = None
    """Share of the measured matmul ceiling that these operations reach."""
    cores_busy: float | None = None
    """Mean number of cores that this process kept busy."""
    cores: int | None = None

    def part(self, *kinds: Kind) -> float:
        """Milliseconds of these kinds together."""
        return sum(part.ms for part in self.parts if part.kind in kinds)

    @property
    def busy_ms(self) -> float:
        """Time in which the device did something, copies and communication included."""
        return self.step_ms - self.part(*WAITS)

    def share(self, *kinds: Kind) -> float:
        """Their share of the step."""
        return self.part(*kinds) / self.step_ms if self.step_ms else 0.0
