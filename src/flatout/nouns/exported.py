"""Exported: what became of a model under each backend, and which build of it was kept."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path


class BuildPrecision(enum.StrEnum):
    """How much a backend may change the results."""

    EXACT = "exact"  # float32 arithmetic, at most reordered
    ROUNDING = "rounding"  # bfloat16 or float16 inside
    QUANTISED = "quantised"  # int8, int4 or float8


class Goal(enum.StrEnum):
    """What the kept build should be best at."""

    LATENCY = "latency"  # time of one call with batch 1
    THROUGHPUT = "throughput"  # samples per second with the best batch
    SIZE = "size"  # bytes of the artefact


class BuildState(enum.StrEnum):
    """How far a candidate got."""

    CHOSEN = "chosen"
    VERIFIED = "verified"  # its results agree; another was better
    REFUSED = "refused"  # its results do not agree
    FAILED = "failed"  # it could not be built, loaded or run
    ABSENT = "absent"  # a package is not installed
    SKIPPED = "skipped"  # not for this machine, this model or these options


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of the model."""

    name: str
    dtype: str
    """As in torch, without `torch.`."""
    shape: tuple[int | None, ...]
    """The size of each dimension, or None for any size."""


@dataclass(frozen=True)
class ExportGuard:
    """Comparison of a build with the model in eager float32."""

    passed: bool
    reason: str
    """Why it did not pass; empty if it passed."""
    samples: int
    """Rows that were compared."""
    relative_error: float | None
    """Largest relative L2 error of an output in a call."""
    limit: float | None
    top1: float | None = None
    """Share of rows with the same most likely class, without ties, or None without such output."""
    metric: str = ""
    """The measure by which a quantised build is judged: accuracy, agreement, loss, error."""
    reference: float | None = None
    value: float | None = None
    lower: float | None = None
    """Lower 95 % bound of value / reference."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes that were compared."""


@dataclass(frozen=True)
class Latency:
    """Time of one call; milliseconds."""

    batch: int
    calls: int
    p50_ms: float
    p99_ms: float | None
    """The 99th percentile, or None for fewer than 1,000 calls."""
    low_ms: float
    """Lower end of the 95 % interval of p50; rounds alternate with those of other builds."""
    high_ms: float
    """Upper end of that interval."""


@dataclass(frozen=True)
class BatchPoint:
    """Speed with one batch size."""

    batch: int
    ms: float
    """Median of a call."""
    samples_per_s: float


@dataclass(frozen=True)
class ExportCandidate:
    """One backend with one precision: a row of the table."""

    id: str
    """`onnxruntime-int8`: backend and variant."""
    backend: str
    title: str
    precision: BuildPrecision
    state: BuildState
    reason: str = ""
    """Why it is not verified, or not chosen."""
    install: str = ""
    """The line that installs what is missing."""
    guard: ExportGuard | None = None
    latency: Latency | None = None
    batches: tuple[BatchPoint, ...] = ()
    build_s: float | None = None
    load_s: float | None = None
    first_call_ms: float | None = None
    peak_bytes: int | None = None
    size_bytes: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    """Package -> version that it was built and measured with."""
    speedup: float | None = None
    """Speed-up of a call with batch 1 over eager float32."""
    speedup_interval: tuple[float, float] | None = None
    """Its 95 % interval."""

    @property
    def best_batch(self) -> BatchPoint | None:
        """The batch size with the most samples per second."""
        return max(self.batches, key=lambda point: point.samples_per_s, default=None)


@dataclass(frozen=True)
class ExportSettings:
    """How to export."""

    python: str
    """The user's interpreter, which has torch and any installed runtimes."""
    out: Path
    """The artefact folder."""
    goal: Goal = Goal.LATENCY
    exact: bool = False
    """Keep float32 arithmetic."""
    allow: tuple[str, ...] = ()
    """With `int8`, quantised builds may be chosen."""
    only: tuple[str, ...] = ()
    """Backends to try; empty for all except those tried only on demand."""
    skip: tuple[str, ...] = ()
    build_limit_s: float = 300.0
    """Seconds allowed for each build."""
    memory_bytes: int | None = None
    """Bytes for each process, or None for what this machine can spare."""
    measure_s: float = 4.0
    """Seconds for each candidate, at batch 1 and again over batches."""
    threads: int | None = None
    """Number of threads, or None for the cores that this process may use."""


@dataclass(frozen=True)
class ExportResult:
    """The answer of `flatout export`."""

    model: str
    parameters: int
    source: str
    """Where the inputs come from: evaluation, training or library."""
    weights: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch_sizes: tuple[int, ...]
    goal: Goal
    candidates: tuple[ExportCandidate, ...]
    """The chosen one first, then the verified ones from the best to the worst, then the others."""
    chosen: str | None
    """Id of the chosen one, or None if none could be verified."""
    why: str
    """Why it was chosen."""
    artefact: Path | None
    metric: dict[str, object] | None
    """What the script's own evaluation reports: name, value, how."""
    notes: tuple[str, ...]
    machine: dict[str, object]
    """cpu, cores, isa, device, torch."""
    run_folder: Path
    wall_s: float

    @property
    def winner(self) -> ExportCandidate | None:
        """The chosen candidate."""
        return next((item for item in self.candidates if item.id == self.chosen), None)

    @property
    def eager(self) -> ExportCandidate | None:
        """The model as the script runs it, with which all others are compared."""
        return next((item for item in self.candidates if item.id == "eager"), None)
