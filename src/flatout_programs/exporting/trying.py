"""Which settings of a backend are the fastest, tried on real inputs while it is built."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

ROUNDS = 5
ROUND_S = 0.06
SAME = 1e-7
"""Relative difference below which a rounding has changed nothing."""


def fastest(
    captured: Captured, folder: Path, loading: Any, combinations: list[dict[str, Any]], threads: int
) -> dict[str, Any]:
    """The combination with the lowest median time of a single call, and whether it changes values.

    Settings that fail are left out; raises the last error where all do.
    """
    call = captured.single_calls()[0]
    best, error = None, None
    for options in combinations:
        try:
            run = loading.start(folder, options, threads)
            output, ms = run(call), _median_ms(run, call)
        except Exception as problem:
            error = problem
            continue
        finally:
            _reset()
        if best is None or ms < best["ms"]:
            best = {"options": options, "ms": ms, "output": output}
    if best is None:
        assert error is not None
        raise error
    plain = loading.start(folder, {"channels_last": False, "rounding": ""}, threads)(call)
    best["changes"] = _differ(best["output"], plain)
    return best


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
    import torch

    torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.backends.mkldnn.conv.fp32_precision = "none"


def _differ(left: list[Any], right: list[Any]) -> bool:
    return any(
        abs(a - b).max() > SAME * max(1e-30, abs(b).max())
        for a, b in zip(left, right)
        if a.size and a.dtype.kind == "f"
    )
