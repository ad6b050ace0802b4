"""The part of the contract that is about how a program ended by an exception; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MisfitKind = Literal["label", "index", "probability"]


@dataclass(frozen=True)
class TensorSeen:
    """A tensor that a frame of the traceback held."""

    name: str
    """As the frame calls it: `target`, `batch['labels']`."""
    shape: tuple[int, ...]
    dtype: str
    device: str
    low: float | None = None
    """Least and greatest value; None: not read (on a device, too large, or of no numbers)."""
    high: float | None = None
    nans: int | None = None
    """Values that are NaN or infinite."""


@dataclass(frozen=True)
class SceneFrame:
    """One frame of the traceback with the tensors in it."""

    where: str
    """file:line, the file from where the program was started."""
    function: str
    tensors: tuple[TensorSeen, ...]
    module: str = ""
    """Class of the module whose method it is; empty: of none."""
    own: bool = True
    """The user's own code, not a package's."""


@dataclass(frozen=True)
class Misfit:
    """Values of a tensor that the operation which failed does not take."""

    kind: MisfitKind
    name: str
    """Of the tensor."""
    value: float
    """The first of them."""
    position: tuple[int, ...]
    """Where it stands in the tensor."""
    count: int
    values: int
    """All values of the tensor."""
    limit: float
    """Values must be below it: the number of classes, or of rows of the table; of probabilities
    the greatest."""
    first_is_sample: bool = True
    """The first dimension of the tensor counts samples."""


@dataclass(frozen=True)
class CrashScene:
    """What the frames of the exception that ended this process held."""

    frames: tuple[SceneFrame, ...] = ()
    """The innermost first: the user's own, and those of torch below it."""
    misfit: Misfit | None = None
    sample: int | None = None
    """Index of the sample that the data set was asked for."""
    kind: str = "scene"


@dataclass(frozen=True)
class HistorySeen:
    """How the steps before a crash went."""

    steps: tuple[int, ...]
    """Numbers of steps after which memory was read, from the first on, ever more apart."""
    memory_bytes: tuple[int, ...]
    """In use then: by tensors on an accelerator, by the process on a CPU."""
    device: str
    batch_elements: int | None = None
    """Elements of the tensors in the last batch; None: no loader was seen."""
    most_elements: int | None = None
    """The most of any batch before it; None: there was none."""
    batch: int | None = None
    """Number of the last batch in its epoch, from 0."""
    batch_size: int | None = None
    in_order: bool = False
    """Samples come in the order of the data set."""
    kind: str = "history"
