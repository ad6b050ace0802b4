"""Amdahl's law: what a faster part is worth to the whole."""

from __future__ import annotations

import math


def saved(part: float, factor: float) -> float:
    """How much of `part` (ms, or a share) is saved when it becomes `factor` times as fast."""
    return part * (1 - 1 / factor)


def speedup(whole: float, less: float, least: float = 0.0) -> float:
    """How many times as fast the whole becomes when `less` of it is saved.

    least: the smallest share of the whole that must remain; 0 for no limit.
    """
    return whole / max(whole - less, least * whole)


def remaining(whole: float, factor: float) -> float | None:
    """The time of the whole at `factor` times the speed; None unless it is finite and positive."""
    return whole / factor if math.isfinite(factor) and factor > 0 else None
