"""Capture: a model and its inputs, taken out of a script, ready to be built by any backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class CaptureRequest:
    """What to take out of a script."""

    model: str = ""
    """Class or name of the model; empty: the one that is evaluated, else the largest trained."""
    weights: str = ""
    """A checkpoint, `PATH` or `PATH#ENTRY`; empty: the script trains to its end."""
    epoch_steps: int = 8
    """With a checkpoint the script is ended early: it trains so many steps in each epoch."""
    limit_s: float = 600.0
    """With a checkpoint: time for the script to come to its evaluation."""
    beside: bool = False
    """Send the script's output to stderr: stdout is for our own document."""


@dataclass(frozen=True)
class Capture:
    """A capture folder."""

    folder: Path
    model: str
    """Class of the model."""
    source: str
    """evaluation or training: where the inputs are from."""
    samples: int
    """Calls that were kept."""
    seconds: float
    """That it took."""
    notes: tuple[str, ...] = field(default=())
