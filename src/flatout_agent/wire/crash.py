"""The part of the contract that is about how a program ended by an exception; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MisfitKind = Literal["label", "index", "probability"]


@dataclass(frozen=True)
class TensorSeen:
    """A tensor held by a frame of the traceback."""

    name: str
    """Its name in the frame: `target`, `batch['labels']`."""
    shape: tuple[int, ...]
    dtype: str
    device: str
    low: float | None = None
    """Least and greatest value, or None if not read (on a device, too large, or not numbers)."""
    high: float | None = None
    nans: int | None = None
    """The number of values that are NaN or infinite."""


@dataclass(frozen=True)
class SceneFrame:
    """One frame of the traceback with the tensors in it."""

    where: str
    """file:line, relative to where the program was started."""
    function: str
    tensors: tuple[TensorSeen, ...]
    module: str = ""
    """Class of the module whose method it is; empty if none."""
    own: bool = True
    """Whether it is the user's own code, not a package's."""


@dataclass(frozen=True)
class Misfit:
    """Values of a tensor that the failed operation does not accept."""

    kind: MisfitKind
    name: str
    """Name of the tensor."""
    value: float
    """The first of these values."""
    position: tuple[int, ...]
    """Its position in the tensor."""
    count: int
    values: int
    """The number of all values of the tensor."""
    limit: float
    """Values must be below it: the number of classes, or of rows of the table; for probabilities,
    the greatest one."""
    first_is_sample: bool = True
    """Whether the first dimension of the tensor counts samples."""


@dataclass(frozen=True)
class CrashScene:
    """The contents of the frames of the exception that ended this process."""

    frames: tuple[SceneFrame, ...] = ()
    """The frames, innermost first: the user's own, and those of torch below it."""
    misfit: Misfit | None = None
    sample: int | None = None
    """Index of the sample requested from the data set."""
    kind: str = "scene"


@dataclass(frozen=True)
class HistorySeen:
    """The steps before a crash."""

    steps: tuple[int, ...]
    """Numbers of the steps after which memory was read, from the first on, at growing distances."""
    memory_bytes: tuple[int, ...]
    """Memory in use then: by tensors on an accelerator, by the process on a CPU."""
    device: str
    batch_elements: int | None = None
    """Elements of the tensors in the last batch, or None if no loader was seen."""
    most_elements: int | None = None
    """The most elements of any earlier batch, or None if there was none."""
    batch: int | None = None
    """Number of the last batch in its epoch, from 0."""
    batch_size: int | None = None
    in_order: bool = False
    """Whether samples come in the order of the data set."""
    kind: str = "history"
