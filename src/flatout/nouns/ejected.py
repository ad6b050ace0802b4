"""A plan as plain PyTorch lines, ready to be printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ScriptPlace = Literal["environment", "start", "loader", "model", "optimizer"]
"""Where lines go: before or after torch's import, or where each of these is made and used."""


@dataclass(frozen=True)
class EjectedBoost:
    """One boost, written by hand."""

    id: str
    title: str
    risk: str
    gain: float | None
    """Measured speed-up when it was added (1.5 = 50 % faster)."""
    params: dict[str, Any]
    where: ScriptPlace
    lines: tuple[str, ...]
    """Lines of Python."""


@dataclass(frozen=True)
class Ejected:
    """All boosts of a plan, in the order in which a script needs them."""

    plan: str
    """The file's path, as given."""
    speedup: float | None
    job_known: bool
    """Whether the plan says for which program it was made, so that the lines fit it."""
    boosts: tuple[EjectedBoost, ...]
