"""A plan as plain PyTorch: changes of its script, or lines ready to be printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ScriptPlace = Literal["environment", "start", "loader", "model", "frozen", "optimizer"]
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
    template_because: str = ""
    """Why the lines are not among the script's changes; empty if they are, or there are none."""


@dataclass(frozen=True)
class Ejected:
    """All boosts of a plan, in the order in which a script needs them."""

    plan: str
    """The file's path, as given."""
    speedup: float | None
    job_known: bool
    """Whether the plan says for which program it was made, so that the lines fit it."""
    boosts: tuple[EjectedBoost, ...]
    yours: tuple[str, ...] = ()
    """Names in the lines that stand for what the script calls so."""
    script: str | None = None
    """The plan's script, or None without one: all lines are templates then."""
    note: str = ""
    """What else is to be known of the script; empty: nothing."""
    tried: str = ""
    """What came of running the changed script; empty: it was not run."""
    diff: tuple[str, ...] = ()
    """The changes of the script as lines of a unified diff."""
