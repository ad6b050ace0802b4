"""Capture: a model and its inputs, taken out of a script, ready to be built by any backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class CaptureRequest:
    """What to take out of a script."""

    model: str = ""
    """Class or name of the model; empty for the evaluated one, else the largest trained."""
    weights: str = ""
    """A checkpoint, `PATH` or `PATH#ENTRY`; empty if the script trains to its end."""
    epoch_steps: int = 8
    """Steps trained in each epoch; used only with a checkpoint, to end the script early."""
    limit_s: float = 600.0
    """Seconds in which the script must reach its evaluation; used only with a checkpoint."""
    beside: bool = False
    """Send the script's output to stderr: stdout is for our own document."""


@dataclass(frozen=True)
class Capture:
    """A capture folder."""

    folder: Path
    model: str
    """Class of the model."""
    source: str
    """Where the inputs come from: evaluation or training."""
    samples: int
    """Number of calls that were kept."""
    seconds: float
    """Seconds that the capture took."""
    notes: tuple[str, ...] = field(default=())
