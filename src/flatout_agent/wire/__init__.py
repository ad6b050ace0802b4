"""The whole contract between the host and the agent: the shapes of orders and records.

The host writes one `Orders` file before it starts the user's program. Each process of that
program that trains writes its own file of records, one JSON document a line. Both sides use
these classes; nothing else crosses the border.

Units are in the names (`_s` seconds, `_bytes`). A fact that could not be read is `None`.
Standard library only: this module is imported before torch and without it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from flatout_agent.wire.crash import CrashScene as CrashScene
from flatout_agent.wire.crash import HistorySeen as HistorySeen
from flatout_agent.wire.crash import Misfit as Misfit
from flatout_agent.wire.crash import MisfitKind as MisfitKind
from flatout_agent.wire.crash import SceneFrame as SceneFrame
from flatout_agent.wire.crash import TensorSeen as TensorSeen
from flatout_agent.wire.export import ExportOrders as ExportOrders
from flatout_agent.wire.export import ExportRefused as ExportRefused
from flatout_agent.wire.export import ExportSeen as ExportSeen
from flatout_agent.wire.flow import AgainSeen as AgainSeen
from flatout_agent.wire.flow import BesideSeen as BesideSeen
from flatout_agent.wire.flow import ConstantSeen as ConstantSeen
from flatout_agent.wire.flow import DoubleSeen as DoubleSeen
from flatout_agent.wire.flow import EmbeddingSeen as EmbeddingSeen
from flatout_agent.wire.flow import FlowSeen as FlowSeen
from flatout_agent.wire.flow import GradientsSeen as GradientsSeen
from flatout_agent.wire.flow import IgnoredSeen as IgnoredSeen
from flatout_agent.wire.flow import RecomputedSeen as RecomputedSeen
from flatout_agent.wire.flow import RepeatSeen as RepeatSeen
from flatout_agent.wire.flow import UnreadSeen as UnreadSeen
from flatout_agent.wire.host import CoresSeen as CoresSeen
from flatout_agent.wire.host import FrameSeen as FrameSeen
from flatout_agent.wire.host import HostSeen as HostSeen
from flatout_agent.wire.host import StackSeen as StackSeen
from flatout_agent.wire.live import ENOUGH_TO_CONFIRM as ENOUGH_TO_CONFIRM
from flatout_agent.wire.live import SHORT_S as SHORT_S
from flatout_agent.wire.live import BlockRun as BlockRun
from flatout_agent.wire.live import BoostOrder as BoostOrder
from flatout_agent.wire.live import Compared as Compared
from flatout_agent.wire.live import Decided as Decided
from flatout_agent.wire.live import LiveOrders as LiveOrders
from flatout_agent.wire.live import LiveSummary as LiveSummary
from flatout_agent.wire.live import LiveVerdict as LiveVerdict
from flatout_agent.wire.live import Params as Params
from flatout_agent.wire.live import WhyUntried as WhyUntried
from flatout_agent.wire.live import confirmation_s as confirmation_s
from flatout_agent.wire.live import reserved_s as reserved_s
from flatout_agent.wire.memory import MemoryAtRows as MemoryAtRows
from flatout_agent.wire.memory import MemoryOrders as MemoryOrders
from flatout_agent.wire.memory import MemorySeen as MemorySeen
from flatout_agent.wire.plain import plain as plain
from flatout_agent.wire.profile import SHORT_RUN as SHORT_RUN
from flatout_agent.wire.profile import CallSeen as CallSeen
from flatout_agent.wire.profile import LoopSeen as LoopSeen
from flatout_agent.wire.profile import ProfileOrders as ProfileOrders
from flatout_agent.wire.profile import UpdateSeen as UpdateSeen
from flatout_agent.wire.ranks import LOCAL_SIZE_ENV as LOCAL_SIZE_ENV
from flatout_agent.wire.ranks import LOST_EXIT as LOST_EXIT
from flatout_agent.wire.ranks import OWN_DDP as OWN_DDP
from flatout_agent.wire.ranks import RANK_ENV as RANK_ENV
from flatout_agent.wire.ranks import REFUSED_EXIT as REFUSED_EXIT
from flatout_agent.wire.ranks import SAVED_EXIT as SAVED_EXIT
from flatout_agent.wire.ranks import SIZE_ENV as SIZE_ENV
from flatout_agent.wire.ranks import WARNING_ENV as WARNING_ENV
from flatout_agent.wire.ranks import NativeSeen as NativeSeen
from flatout_agent.wire.ranks import RankOrders as RankOrders
from flatout_agent.wire.ranks import RanksRefused as RanksRefused
from flatout_agent.wire.ranks import RanksSeen as RanksSeen
from flatout_agent.wire.ranks import RegionSeen as RegionSeen

VERSION = 1
ORDERS_ENV = "FLATOUT_ORDERS"
"""Environment variable that holds the path of the orders file."""

FIRST_GATE = -1
"""The number of the gate after the first step; the rest of the warm-up follows it."""
LAST_GATE = "last"

BoostState = Literal["applied", "declined", "failed", "engaged", "idle"]
Phase = Literal["warmup", "window", "sample", "record", "again", "detail", "flops", "ending"]
"""Phases: a trial has the first two, a profile all of them."""
EndReason = Literal["window", "program"]
"""window: the ordered window is complete; program: the program ended by itself."""

T = TypeVar("T")


@dataclass(frozen=True)
class TrialOrders:
    """How to run one trial. The program is stopped when the window is complete."""

    seed: int = 0
    min_steps: int = 8
    """The window holds at least this many steps ..."""
    max_steps: int = 50
    """... at most this many ..."""
    window_s: float = 3.0
    """... and lasts this long in between."""
    warmup_max_s: float = 60.0
    """Give up waiting for stable step times after this long (compilation not counted)."""
    gates: int = 0
    """Pause after warm-up and after each of this many windows until the host opens the gate."""
    scratch: str = ""
    """Folder that receives everything the program would save."""
    prepared: str | None = None
    """Read-only folder of files that the baseline wrote before its first step (data sets)."""
    protect: str = ""
    """Folder below which nothing may be overwritten: the one where the user started the program."""
    reseed: int = 0
    """Seed of other random numbers from the second step on, or 0 for the program's own."""


@dataclass(frozen=True)
class Orders:
    """The agent's orders for this program."""

    records: str
    """Folder into which each process writes `<pid>.jsonl`."""
    boosts: tuple[BoostOrder, ...] = ()
    trial: TrialOrders | None = None
    profile: ProfileOrders | None = None
    live: LiveOrders | None = None
    memory: MemoryOrders | None = None
    export: ExportOrders | None = None
    pulse: str = ""
    """Folder into which each training process writes its ring; empty if none is wanted."""
    ranks: RankOrders | None = None
    """Orders for one of several processes that train together, or None if it trains alone."""
    until_put_back: bool = False
    """Whether the agent may end before the program does; every boost can be undone until then."""
    version: int = VERSION


@dataclass(frozen=True)
class LoaderFacts:
    """One DataLoader as the script made it (before any boost)."""

    dataset: str
    iterable: bool
    """Whether it is an IterableDataset: each worker would yield the whole data unless it shards
    itself."""
    batch_size: int | None
    batches: int | None
    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    start_method: str
    """How Python starts workers here: fork, spawn or forkserver."""
    main_guard: bool | None
    """Whether the main script has `if __name__ == "__main__"`, or None if it is not a script
    file."""
    read_singly: str = "it is not known whether they are rows in memory"
    """Why the samples of a batch cannot be read together; empty if they can."""


@dataclass(frozen=True)
class ModelFacts:
    """One root model: an outermost module with trainable parameters, called in training mode."""

    kind: str
    parameters: int
    dtype: str
    device: str
    conv2d: int = 0
    matmul: int = 0
    """Linear, attention, recurrent and 1-d/3-d convolution layers."""
    compiled: bool = False
    channels_last: bool = False
    random_forward: bool = False
    """The forward pass draws random numbers (dropout)."""
    input_shapes: tuple[str, ...] = ()
    """Distinct shapes of the first tensor input seen in the first steps, as "32x3x224x224". One
    alone if nearly all calls have it."""
    has_hooks: bool = False
    wrapped: str | None = None
    """DistributedDataParallel, FullyShardedDataParallel, DataParallel or None."""
    searches_unused: bool = False
    """DistributedDataParallel(find_unused_parameters=True)."""
    embeddings: int = 0
    """Embedding layers."""
    recurrent: int = 0
    """`nn.LSTM` and `nn.GRU` layers."""
    blocks: int = 0
    """Repeated blocks, each like at least two others; 0 if most layers are elsewhere."""
    padded: float = 0.0
    """Share of its inputs that need not be computed as they are padding, on average over the first
    batches."""


@dataclass(frozen=True)
class OptimizerFacts:
    kind: str
    """Class name."""
    from_torch: bool
    """Whether it is a class of torch.optim itself, not a user's subclass."""
    parameters: int
    tensors: int
    dtype: str
    fused: bool | None
    foreach: bool | None


@dataclass(frozen=True)
class JobFacts:
    """Facts of the user's training program, observed without any boost."""

    torch: str
    python: str
    system: str
    """sys.platform: linux, win32, darwin."""
    device: str
    """cpu, cuda, xpu or mps: where the first root model's parameters are."""
    device_name: str | None = None
    capability: tuple[int, int] | None = None
    """CUDA compute capability."""
    hip: bool = False
    bf16: bool | None = None
    """Whether bfloat16 matrix multiplication is native here (not emulated)."""
    bf16_inside_float32: bool | None = None
    """Whether oneDNN can round float32 factors to bfloat16 if set to: CPUs with AMX or Arm BF16."""
    cores: int = 1
    """Cores this process may really use: affinity and cgroup quota."""
    threads: int = 1
    """torch.get_num_threads() when training began."""
    threads_named: bool = False
    """Whether the user sets a number of threads in the environment (OMP_NUM_THREADS)."""
    world_size: int = 1
    loaders: tuple[LoaderFacts, ...] = ()
    models: tuple[ModelFacts, ...] = ()
    frozen: tuple[ModelFacts, ...] = ()
    """Models that each step calls and does not train."""
    optimizers: tuple[OptimizerFacts, ...] = ()
    by_hand: bool = False
    """Whether no optimizer steps: the program changes its weights itself."""
    micro_steps: float = 1.0
    """Backward passes per step; above 1 the script accumulates gradients."""
    autocast: str | None = None
    """dtype of an autocast region that the script itself opens around the model."""
    scaler: bool = False
    """Whether the script uses an enabled GradScaler."""
    matmul_precision: str = "highest"
    cudnn_benchmark: bool = False
    deterministic: bool = False
    eval_with_grad: bool = False
    """Whether an evaluation pass ran with gradients on and no backward pass followed."""
    gc_enabled: bool = True
    triton: bool = False
    compiler: bool = False
    """Whether there is a C++ compiler (CPU) or Triton (GPU) that torch.compile can use."""
    step_s: float | None = None
    wait_share: float | None = None
    """Share of the step spent waiting for the loader."""
    workers_share: float | None = None
    """Share of the usable cores that loader workers take, or None if unknown."""
    noise: float | None = None
    """Standard deviation of the log of the ratio of some steps' times to their neighbours'."""
    shares: dict[str, float] = field(default_factory=dict)
    """Share of the step that each kind of operation takes (products, convolutions, attention,
    dropout, norms, softmax, embeddings, sparse, others, optimizer); empty if not measured."""
    operations: int = 0
    """Operations in the models' part of a step, forward and backward, or 0 if not counted."""
    idle_share: float | None = None
    """Share of the step in which the accelerator waits for the program, including its loader, or
    None if not measured."""


@dataclass(frozen=True)
class Started:
    """The agent is alive in this process."""

    pid: int
    argv: tuple[str, ...]
    python: str
    executable: str
    rank: int = 0
    kind: str = "started"


@dataclass(frozen=True)
class TorchSeen:
    version: str
    kind: str = "torch"


@dataclass(frozen=True)
class JobSeen:
    facts: JobFacts
    kind: str = "job"


@dataclass(frozen=True)
class BoostNote:
    """The outcome of one boost."""

    id: str
    state: BoostState
    reason: str = ""
    kind: str = "boost"


@dataclass(frozen=True)
class StepTaken:
    """One step in a trial or a profile."""

    index: int
    phase: Phase
    wall_s: float
    wait_s: float = 0.0
    eval_s: float = 0.0
    samples: int = 0
    window: int = 0
    kind: str = "step"

    @property
    def train_s(self) -> float:
        """Seconds without those of evaluations."""
        return self.wall_s - self.eval_s


@dataclass(frozen=True)
class AtGate:
    """The program waits before window `number`, or at the `FIRST_GATE`, until the host creates the
    file `path`.

    A number in that file is how many steps the window has, or at the first gate the index of the
    warm-up's last step. `LAST_GATE`: no more windows are wanted.
    """

    number: int
    path: str
    kind: str = "gate"


@dataclass(frozen=True)
class LossesSeen:
    """Loss per step, from the first on; NaN and Inf as None."""

    losses: tuple[float | None, ...]
    kind: str = "losses"


@dataclass(frozen=True)
class Redirected:
    """Something the program tried to save in a trial."""

    path: str
    kind: str = "redirected"


@dataclass(frozen=True)
class Fault:
    """An error inside the agent; the program went on without the part named in `where`."""

    where: str
    message: str
    kind: str = "fault"


@dataclass(frozen=True)
class Crashed:
    """The last lines of the exception that ended this process, as Python printed it."""

    text: str
    kind: str = "crashed"


@dataclass(frozen=True)
class Ended:
    """Last record of a process."""

    reason: EndReason
    steps: int
    samples: int
    train_s: float
    """Seconds from the end of the first step to the end of the last."""
    wait_s: float
    peak_bytes: int | None = None
    """Peak memory in use: of the accelerator, or of this process on a CPU."""
    recompiles: int = 0
    graph_breaks: int = 0
    backwards: int = 0
    """Backward passes counted until an optimizer stepped."""
    data_parallel: int = 0
    """The number of devices that `nn.DataParallel` spreads a model over, in this one process."""
    children: int = 0
    """Processes that it started through `multiprocessing`, including loader workers."""
    kind: str = "ended"


Record = (
    Started
    | TorchSeen
    | JobSeen
    | BoostNote
    | StepTaken
    | AtGate
    | LossesSeen
    | Decided
    | BlockRun
    | LiveSummary
    | Redirected
    | Fault
    | LoopSeen
    | HostSeen
    | Crashed
    | CrashScene
    | HistorySeen
    | RanksSeen
    | RanksRefused
    | NativeSeen
    | MemorySeen
    | ExportSeen
    | ExportRefused
    | Ended
)
KINDS: dict[str, type[Any]] = {
    cls.__dataclass_fields__["kind"].default: cls for cls in typing.get_args(Record)
}


def dump(value: Any) -> str:
    """A dataclass of this module as one line of JSON."""
    return json.dumps(plain(value), separators=(",", ":"), allow_nan=False)


def record(line: str) -> Record:
    """The record in one line. Raises ValueError for a kind that this version does not know."""
    raw = json.loads(line)
    cls = KINDS.get(raw.get("kind"))
    if cls is None:
        raise ValueError(f"unknown record kind {raw.get('kind')!r}")
    parsed: Record = decode(cls, raw)
    return parsed


def orders(text: str) -> Orders:
    """The orders in `text`. Raises ValueError when a newer version wrote them."""
    raw = json.loads(text)
    if raw.get("version", 0) > VERSION:
        raise ValueError(f"orders of version {raw['version']}, this agent knows {VERSION}")
    return decode(Orders, raw)


def decode(cls: type[T], raw: Any) -> T:
    """Build `cls` from parsed JSON: nested dataclasses, tuples, optionals; ignore extra keys."""
    hints = typing.get_type_hints(cls)
    values = {
        item.name: _decode_value(hints[item.name], raw[item.name])
        for item in dataclasses.fields(cls)  # type: ignore[arg-type]
        if item.name in raw
    }
    return cls(**values)


def _decode_value(hint: Any, raw: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if raw is None:
        return None
    if origin in (types.UnionType, typing.Union):
        return _decode_value(next(arg for arg in args if arg is not type(None)), raw)
    if origin is tuple:
        return tuple(_decode_value(args[0], item) for item in raw)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return decode(hint, raw)
    return raw
