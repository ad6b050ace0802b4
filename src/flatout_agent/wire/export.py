"""The part of the contract that is about taking a model out of a program; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExportOrders:
    """How to take the model out of the program: at its end, or earlier."""

    folder: str = ""
    """The capture folder to write; empty for one of this process, beside the records."""
    model: str = ""
    """Class or name of the model; empty for the evaluated one, else the largest trained one."""
    weights: str = ""
    """A checkpoint whose weights it gets; empty to keep its own."""
    weights_key: str = ""
    """The entry of the checkpoint that holds them; empty to search for it."""
    after_steps: int | None = None
    """End each epoch after this many steps, and the program once an evaluation has been seen. None
    to let it run to its end.
    """


@dataclass(frozen=True)
class ExportSeen:
    """The model has been written to a capture folder."""

    folder: str
    model: str
    source: str
    """Source of the inputs: evaluation, training or library."""
    samples: int
    """The number of calls kept."""
    seconds: float
    """Seconds that it took, at the program's end."""
    notes: tuple[str, ...] = ()
    kind: str = "export"


@dataclass(frozen=True)
class ExportRefused:
    """The reason why there is no capture."""

    reason: str
    cure: str = ""
    where: tuple[str, ...] = ()
    """file:line of the causes."""
    kind: str = "export-refused"
