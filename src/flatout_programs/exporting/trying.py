"""Finds the fastest settings of a backend, tried on real inputs while it is built."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

ROUNDS = 5
ROUND_S = 0.06
CLEARLY = 1.03
"""A later combination must be this much faster than the best before it."""
SAME = 1e-7
"""Relative difference below which a rounding has changed nothing."""


def fastest(
    captured: Captured, folder: Path, loading: Any, combinations: list[dict[str, Any]], threads: int
) -> dict[str, Any]:
    """The combination with the lowest median time of a single call.

    Combinations that fail are left out; raises the last error if all fail. Of nearly equal ones the
    first is taken, so put the plainest first.
    """
    call = captured.single_calls()[0]
    best, best_ms, error = None, 0.0, None
    for options in combinations:
        try:
            ms = _median_ms(loading.start(folder, options, threads), call)
        except Exception as problem:
            error = problem
            continue
        finally:
            _reset()
        if best is None or ms * CLEARLY < best_ms:
            best, best_ms = options, ms
    if best is None:
        assert error is not None
        raise error
    return best


def changes(
    captured: Captured, folder: Path, loading: Any, pair: list[dict[str, Any]], threads: int
) -> bool:
    """Whether two settings give different values at all."""
    call = captured.single_calls()[0]
    left = loading.start(folder, pair[0], threads)(call)
    _reset()
    return _differ(left, loading.start(folder, pair[1], threads)(call))


def _median_ms(run: Any, call: list[Any]) -> float:
    run(call)
    times = []
    for _ in range(ROUNDS):
        began, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - began < ROUND_S:
            run(call)
            calls += 1
        times.append((time.perf_counter() - began) / calls * 1e3)
    return statistics.median(times)


def _reset() -> None:
    """The process-wide settings that a start has changed."""
    import torch

    onednn: Any = torch.backends.mkldnn
    if not hasattr(onednn, "matmul"):
        return  # torch before 2.9
    onednn.matmul.fp32_precision = onednn.conv.fp32_precision = "none"


def _differ(left: list[Any], right: list[Any]) -> bool:
    return any(
        abs(a - b).max() > SAME * max(1e-30, abs(b).max())
        for a, b in zip(left, right)
        if a.size and a.dtype.kind == "f"
    )
