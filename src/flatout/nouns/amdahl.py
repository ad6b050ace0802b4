"""Amdahl's law: what a faster part is worth to the whole."""

from __future__ import annotations

import math


def saved(part: float, factor: float) -> float:
    """What falls away of `part` (ms, or a share) that becomes `factor` times as fast."""
    return part * (1 - 1 / factor)


def speedup(whole: float, less: float, least: float = 0.0) -> float:
    """How many times as fast the whole becomes when `less` of it falls away.

    least: the share of the whole that remains at least; 0 where that is certain.
    """
    return whole / max(whole - less, least * whole)


def remaining(whole: float, factor: float) -> float | None:
    """What the whole takes when it becomes `factor` times as fast, or None without speed-up."""
    return whole / factor if math.isfinite(factor) and factor > 0 else None
