"""How boosts have fared, by device. Made by benchmarks/expected.py: do not edit."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """How a boost fared where it applied and was compared."""

    cases: int
    helped: float
    """Share of the cases in which it was kept."""
    harm: float
    """How much slower it made the other cases on average: 0.1 is 10 %."""


RECORDS: dict[str, dict[str, Record]] = {
    "cpu": {
        "allocator": Record(31, 0.82, 0.019),
        "batch-fetch": Record(10, 0.83, 0.056),
        "bf16-autocast": Record(45, 0.66, 0.226),
        "bf16-residual": Record(8, 0.40, 0.030),
        "channels-last": Record(7, 0.89, 0.050),
        "clip-grad": Record(16, 0.61, 0.036),
        "compile": Record(3, 0.20, 0.131),
        "cpu-bf16": Record(16, 0.06, 0.271),
        "cpu-threads": Record(32, 0.15, 0.339),
        "fast-dropout": Record(8, 0.80, 0.034),
        "frozen-bf16": Record(2, 0.25, 0.089),
        "fused-loss": Record(2, 0.50, 0.053),
        "fused-optimizer": Record(15, 0.76, 0.020),
        "gc-pause": Record(18, 0.75, 0.066),
        "image-cache": Record(2, 0.75, 0.050),
        "indexed-rows": Record(3, 0.80, 0.050),
        "loader-workers": Record(10, 0.33, 0.608),
        "sample-cache": Record(9, 0.45, 0.221),
        "slice-gradients": Record(1, 0.67, 0.050),
        "sparse-matmul": Record(2, 0.75, 0.050),
        "trim-padding": Record(1, 0.33, 0.091),
    },
    "cuda": {
        "bf16-autocast": Record(1, 0.67, 0.050),
        "compile": Record(1, 0.67, 0.050),
        "fused-optimizer": Record(2, 0.25, 0.025),
        "loader-pin-memory": Record(1, 0.33, 0.056),
        "loader-workers": Record(2, 0.75, 0.050),
        "tf32": Record(3, 0.40, 0.027),
    },
}
