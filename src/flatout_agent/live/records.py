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
        "allocator": Record(38, 0.85, 0.023),
        "batch-fetch": Record(10, 0.83, 0.046),
        "bf16-autocast": Record(48, 0.70, 0.149),
        "bf16-residual": Record(8, 0.50, 0.031),
        "channels-last": Record(8, 0.90, 0.050),
        "clip-grad": Record(20, 0.64, 0.026),
        "compile": Record(7, 0.11, 0.165),
        "cpu-threads": Record(45, 0.11, 0.397),
        "fast-dropout": Record(9, 0.82, 0.034),
        "fused-loss": Record(2, 0.75, 0.050),
        "fused-optimizer": Record(16, 0.78, 0.020),
        "gc-pause": Record(28, 0.80, 0.026),
        "image-cache": Record(2, 0.75, 0.050),
        "loader-workers": Record(17, 0.11, 0.698),
        "sample-cache": Record(12, 0.29, 0.255),
        "sparse-matmul": Record(2, 0.75, 0.050),
        "trim-padding": Record(2, 0.50, 0.091),
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
