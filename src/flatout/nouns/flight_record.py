"""FlightRecord: what PyTorch's flight recorder kept of the last collectives of all ranks."""

from __future__ import annotations

from dataclasses import dataclass

StackLine = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True)
class FlightCall:
    """One rank's call of a collective."""

    rank: int
    operation: str
    """nccl:all_reduce."""
    number: int
    """Its number in the order of the group's calls."""
    sizes: str
    """Sizes of the inputs: [[1000]]."""
    state: str
    """scheduled, started, completed."""
    stack: tuple[StackLine, ...] = ()
    """The innermost first, torch's own lines too."""


@dataclass(frozen=True)
class UnlikeCall:
    """A collective that some ranks of its group did not call, or called differently."""

    group: str
    """0:default_pg."""
    operation: str
    number: int
    missing: tuple[int, ...]
    """Ranks that never called it."""
    stack: tuple[StackLine, ...]
    """Stack of a rank that called it."""
    others: tuple[FlightCall, ...] = ()
    """What other ranks called instead."""


@dataclass(frozen=True)
class FlightRecord:
    """The dumps of one job."""

    ranks: tuple[int, ...]
    """Ranks with a dump."""
    world: int
    """Ranks of the largest group."""
    last: tuple[FlightCall, ...]
    """The last call of each rank."""
    unlike: tuple[UnlikeCall, ...] = ()
    """The earliest first."""
    text: str = ""
    """The words of torch's analyser."""
