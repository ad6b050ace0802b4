"""Records that a `Flow` keeps of the operators, calls and backward passes of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flatout_agent.watch import places


class FlowLine(NamedTuple):
    """A line of a user's file that is being executed."""

    file: str
    """The file name in the code object."""
    number: int
    function: str

    def __str__(self) -> str:
        """file:line as reported to the host."""
        return f"{places.display(self.file)}:{self.number}"


Stack = tuple[FlowLine, ...]
"""The user's lines, the innermost first."""


@dataclass(slots=True)
class FlowStorage:
    """What is known about one storage; its value is that of its last writer."""

    ref: StorageWeakRef
    outside: bool = True
    """Whether it existed before the two steps."""
    node: int = -1
    version: int = 0
    constant: bool = False
    """Whether its value depends on no tensor that training changes."""
    signature: int = 0
    wide: int = 0
    """Bits of the `FlowEntry` records that made it float64."""

    @property
    def alive(self) -> bool:
        """Whether something still refers to it."""
        return not self.ref.expired()  # type: ignore[no-untyped-call]  # torch's own

    @property
    def key(self) -> int:
        """Its address."""
        return int(self.ref.cdata)


@dataclass(slots=True)
class FlowNode:
    """One operator that made or changed a value."""

    name: str
    where: str | None
    s: float
    flops: float
    step: int
    deps: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    """Storages that existed before, with their versions."""
    made: tuple[FlowStorage, ...]
    backward: bool
    loader: bool
    read: bool = False
    """Whether its inputs are read even if its result is not."""
    counter: bool = False
    """Whether it only counts, as batch normalisation counts its batches."""
    sources: tuple[int, ...] = ()
    """For a constant, the operators that made its inputs."""
    constant: bool = False
    chain: Stack = ()
    """Empty in a backward pass."""
    shapes: tuple[torch.Size, ...] = ()
    """The shapes of the tensors that it takes."""
    onto: tuple[int, ...] = ()
    """Operators that made the values it overwrites."""
    made_s: float = 0.0
    """For a constant, CPU seconds in it and in its sources."""
    backward_pass: int = -1
    """Number of the `FlowPass` that it belongs to, or -1 if it belongs to none or to another
    thread's."""


@dataclass(slots=True)
class FlowCall:
    """One call of a module: the operators from `begin` to before `end`."""

    module: int
    kind: str
    where: str | None
    root: bool
    step: int
    begin: int
    end: int = -1
    chain: Stack = ()
    """The calling line, and those that led to it."""


@dataclass(slots=True)
class FlowPass:
    """One backward pass: the operators from `begin` to before `end`, including those of hooks."""

    chain: Stack
    """The lines that led to it."""
    step: int
    begin: int
    gives: bool
    """Whether torch.autograd.grad called it, which returns the gradients; else they are added to
    `.grad`."""
    graph: bool
    """Whether create_graph=True was given."""
    end: int = -1
    root: int = -1
    """The operator that made the one number that is differentiated, or -1 if there is none."""
    of_weights: bool = False
    """Whether it is asked for the gradients of leaves only, which `backward` leaves in `.grad`."""

    @property
    def where(self) -> str | None:
        """file:line that calls it."""
        return str(self.chain[0]) if self.chain else None


@dataclass(slots=True)
class FlowConstant:
    """A constant that meets a value of the loop."""

    node: int
    step: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    digest: int
    compared: bool
    """Whether it was compared by its bytes, not only by how it was made."""
    changed: bool = False
    """Whether it is written to afterwards."""


@dataclass(slots=True)
class FlowEntry:
    """A place where float64 enters the step."""

    what: str
    """Name of the operator, or "parameter", "buffer", "batch" or "tensor" if the value existed
    before."""
    where: str | None
    part: str = ""
    """The part of the batch, such as ["x"]."""
    s: float = 0.0
    operators: int = 0
    """Operators computed in float64 because of it."""


@dataclass(slots=True)
class FlowUses:
    """The tensors that one operator takes, with their storages and whether it writes to them."""

    tensors: list[tuple[torch.Tensor, FlowStorage, bool]] = field(default_factory=list)
    unknown: bool = False
    """Whether a tensor without storage is among them."""


Nodes = Sequence[FlowNode]


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an argument or a result, which is a tensor or a possibly nested list of
    tensors.
    """
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    return []
