"""How boosts have fared, by device. Made by benchmarks/expected.py: do not edit."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """How a boost fared where it applied and was compared."""

    cases: int
    helped: float
    """Share of the cases in which it was kept."""
    harm: float
    """How much slower it made the others, on average: 0.1 is 10 %."""


RECORDS: dict[str, dict[str, Record]] = {
    "cpu": {
        "allocator": Record(20, 0.91, 0.033),
        "batch-fetch": Record(6, 0.88, 0.050),
        "bf16-autocast": Record(27, 0.62, 0.145),
        "bf16-residual": Record(4, 0.50, 0.028),
        "channels-last": Record(5, 0.86, 0.050),
        "clip-grad": Record(19, 0.62, 0.026),
        "compile": Record(4, 0.17, 0.058),
        "cpu-threads": Record(27, 0.07, 0.371),
        "fast-dropout": Record(4, 0.83, 0.050),
        "fused-loss": Record(1, 0.67, 0.050),
        "fused-optimizer": Record(8, 0.80, 0.033),
        "gc-pause": Record(6, 0.62, 0.037),
        "image-cache": Record(2, 0.75, 0.050),
        "loader-workers": Record(12, 0.07, 0.655),
        "onednn-matmul": Record(3, 0.20, 0.171),
        "sample-cache": Record(9, 0.27, 0.185),
        "sparse-matmul": Record(2, 0.75, 0.050),
    },
    "cuda": {
        "bf16-autocast": Record(1, 0.67, 0.050),
        "compile": Record(1, 0.67, 0.050),
        "device-prefetch": Record(1, 0.33, 0.038),
        "fused-optimizer": Record(2, 0.25, 0.025),
        "loader-pin-memory": Record(1, 0.33, 0.056),
        "loader-workers": Record(2, 0.75, 0.050),
        "tf32": Record(3, 0.40, 0.027),
    },
}
