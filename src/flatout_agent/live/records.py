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
        "allocator": Record(31, 0.79, 0.021),
        "batch-fetch": Record(10, 0.83, 0.056),
        "bf16-autocast": Record(44, 0.70, 0.187),
        "bf16-residual": Record(8, 0.40, 0.030),
        "channels-last": Record(7, 0.89, 0.050),
        "clip-grad": Record(15, 0.53, 0.033),
        "compile": Record(4, 0.17, 0.109),
        "cpu-bf16": Record(11, 0.08, 0.281),
        "cpu-threads": Record(33, 0.14, 0.343),
        "fast-dropout": Record(8, 0.80, 0.034),
        "frozen-bf16": Record(1, 0.33, 0.067),
        "fused-loss": Record(2, 0.50, 0.053),
        "fused-optimizer": Record(13, 0.73, 0.020),
        "gc-pause": Record(16, 0.72, 0.059),
        "image-cache": Record(2, 0.75, 0.050),
        "indexed-rows": Record(3, 0.80, 0.050),
        "loader-workers": Record(11, 0.31, 0.639),
        "sample-cache": Record(10, 0.42, 0.196),
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
