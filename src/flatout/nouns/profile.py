"""Profile: what was recorded of one training job; the input of all checks and reports.

Unless stated otherwise, figures are per step, averaged over the recorded steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.nouns.anatomy import Anatomy, Kind
from flatout.nouns.ceiling import Ceiling
from flatout.nouns.finding import Finding
from flatout.nouns.host_time import HostTime
from flatout.nouns.place import Place as Place
from flatout.nouns.product import ProductCalls
from flatout_agent import wire


@dataclass(frozen=True)
class Operator:
    """The sum of one torch operator's or Python call's events from one line of the user's."""

    name: str
    """aten::mm, cudaStreamSynchronize, Optimizer.step#AdamW.step."""
    kind: Kind
    calls: float
    host_ms: float
    """Host time, without the operators that it calls."""
    device_ms: float = 0.0
    """Device time of the kernels that it launched."""
    shapes: tuple[str, ...] = ()
    """Distinct input shapes, the costliest first, as "32x64, 64x128"; at most 8."""
    dtypes: tuple[str, ...] = ()
    """Distinct dtypes of its inputs: float, c10::BFloat16, double, long."""
    where: Place | None = None
    """The user's line, or None if unknown or if there is none (backward without a forward line)."""
    backward: bool = False
    flops: float | None = None


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel, by name."""

    name: str
    kind: Kind
    calls: float
    ms: float
    operator: str = ""
    """The operator that launched it."""
    where: Place | None = None
    tensor_cores: bool | None = None
    occupancy: float | None = None
    """Share of the GPU's threads that a launch can keep busy, estimated by the driver."""


@dataclass(frozen=True)
class Gap:
    """Times in which the device did nothing, for one cause and one place."""

    kind: Kind
    """One of anatomy.WAITS."""
    ms: float
    count: float
    doing: str = ""
    """Name of the event on the host meanwhile."""
    where: Place | None = None


@dataclass(frozen=True)
class Sync:
    """A call in which the host waits for the device."""

    name: str
    """aten::item, aten::nonzero, cudaDeviceSynchronize."""
    calls: float
    ms: float
    """Time the host waited."""
    idle_ms: float = 0.0
    """Time the device was idle after it."""
    where: Place | None = None


@dataclass(frozen=True)
class Copy:
    """Copies of one direction, kind of memory and place."""

    direction: str
    """HtoD, DtoH, DtoD, PtoP."""
    calls: float
    bytes: float
    ms: float
    pinned: bool | None = None
    """Whether the host's side is page-locked."""
    exposed_ms: float = 0.0
    """Time while nothing computes."""
    where: Place | None = None


@dataclass(frozen=True)
class Collective:
    """One kind of communication between devices."""

    name: str
    """all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send_recv, other."""
    calls: float
    ms: float
    """Time in which at least one was under way, including waits for other ranks."""
    exposed_ms: float
    bytes: float | None = None
    """Bytes that one rank contributes."""
    ranks: int | None = None
    """Ranks in the largest exchanging group, or None if not recorded."""
    bus_gb_per_s: float | None = None
    """Bus bandwidth of its fastest large message, or None without one or without recorded sizes."""


HOST_LANE, IDLE_LANE = "host", "idle"
"""Lanes for the training thread and for what the device waits for; all others are streams."""


@dataclass(frozen=True)
class Span:
    """One event of the drawn timeline."""

    lane: str
    """The lane's title: HOST_LANE, IDLE_LANE, or a stream of the device ("stream 7")."""
    name: str
    kind: Kind | None
    begin_ms: float
    """Time since the drawn step began."""
    ms: float
    stream: int | None = None
    """The stream's number, or None without a stream or in files of older versions."""


@dataclass(frozen=True)
class MemoryPoint:
    """Memory in use at one time in the recorded window."""

    at_ms: float
    bytes: int
    category: str = "all"
    """all, parameters, optimizer, activations and gradients."""


@dataclass(frozen=True)
class RankSeen:
    """Another rank's trace, in short."""

    rank: int
    step_ms: float
    busy_ms: float
    communication_ms: float
    compute_ms: float


@dataclass(frozen=True)
class DeviceSample:
    """The driver's means for a GPU while the window was recorded."""

    index: int
    name: str | None
    utilisation: float | None = None
    """0..1."""
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    """The driver's reasons: thermal, power, power brake, hardware slowdown."""
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Profile:
    """Everything known about one job. None or empty means not seen, and claims nothing.

    From a trace alone there is no `seen`, and often no place.
    """

    command: tuple[str, ...]
    """The program's command; empty for an existing trace."""
    anatomy: Anatomy
    operators: tuple[Operator, ...] = ()
    """The costliest first (host and device time together)."""
    kernels: tuple[Kernel, ...] = ()
    gaps: tuple[Gap, ...] = ()
    syncs: tuple[Sync, ...] = ()
    copies: tuple[Copy, ...] = ()
    collectives: tuple[Collective, ...] = ()
    timeline: tuple[Span, ...] = ()
    """Spans of the middle recorded step; at most about 4,000, the shortest omitted."""
    memory: tuple[MemoryPoint, ...] = ()
    ranks: tuple[RankSeen, ...] = ()
    """All ranks with traces; empty for a single one."""
    devices: tuple[DeviceSample, ...] = ()
    device_name: str | None = None
    capability: tuple[int, int] | None = None
    ceilings: tuple[Ceiling, ...] = ()
    products: tuple[ProductCalls, ...] = ()
    """The costliest first; empty if an accelerator multiplies or no shapes were recorded."""
    job: wire.JobFacts | None = None
    seen: wire.LoopSeen | None = None
    host: HostTime | None = None
    """Time of the host, or None if no stacks were sampled."""
    boosts: tuple[str, ...] = ()
    """Boosts that were on during the recording: what they cure is not a finding."""
    trace: str | None = None
    """Path of the raw trace, for Perfetto."""
    trace_steps: bool = True
    """Whether the trace marks its steps; if not, the whole window counts as one."""

    def ceiling(self, ceiling_id: str) -> float | None:
        """The measured value of that ceiling, or None if not measured."""
        values = (row.value for row in self.ceilings if row.id == ceiling_id)
        return next(values, None)


@dataclass(frozen=True)
class Profiled:
    """The whole of one `flatout profile`."""

    profile: Profile
    findings: tuple[Finding, ...]
    """The largest predicted gain first."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What could not be observed, and why."""
    fail_over: float = 0.10
    """A finding worth more than this share of the step is a "no"."""
    checks: int = 0
    wall_s: float | None = None
    run_folder: str | None = None
    report_path: str | None = None

    @property
    def largest_gain(self) -> float:
        """Share of the step that the largest finding would save."""
        saved = [finding.gain.saved for finding in self.findings if finding.gain is not None]
        return max(saved, default=0.0)
