"""The part of the contract that is about taking a model out of a program; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExportOrders:
    """How to take the model out of the program: at its end, or earlier."""

    folder: str = ""
    """The capture folder to write; empty: one of this process, beside the records."""
    model: str = ""
    """Class or name of the model; empty: the one that is evaluated, else the largest trained."""
    weights: str = ""
    """A checkpoint whose weights it gets; empty: those that it has."""
    weights_key: str = ""
    """The entry of the checkpoint that holds them; empty: it is looked for."""
    after_steps: int | None = None
    """End each epoch after so many steps, and the program once an evaluation has been seen; None:
    it runs to its end.
    """
    most_calls: int = 512
    most_bytes: int = 256 << 20
    """Limits of what is kept of an evaluation's inputs."""


@dataclass(frozen=True)
class ExportSeen:
    """The model has been written to a capture folder."""

    folder: str
    model: str
    source: str
    """evaluation, training or library: where the inputs are from."""
    samples: int
    """Calls that were kept."""
    seconds: float
    """That it took, at the program's end."""
    notes: tuple[str, ...] = ()
    kind: str = "export"


@dataclass(frozen=True)
class ExportRefused:
    """Why there is no capture."""

    reason: str
    cure: str = ""
    where: tuple[str, ...] = ()
    """file:line of the causes."""
    kind: str = "export-refused"
