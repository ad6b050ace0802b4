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
        "allocator": Record(31, 0.88, 0.161),
        "batch-fetch": Record(7, 0.89, 0.050),
        "bf16-autocast": Record(38, 0.60, 0.147),
        "bf16-residual": Record(6, 0.62, 0.028),
        "channels-last": Record(6, 0.88, 0.050),
        "clip-grad": Record(22, 0.62, 0.024),
        "compile": Record(5, 0.14, 0.056),
        "cpu-threads": Record(38, 0.10, 0.385),
        "fast-dropout": Record(9, 0.91, 0.050),
        "fused-loss": Record(1, 0.67, 0.050),
        "fused-optimizer": Record(13, 0.80, 0.025),
        "gc-pause": Record(16, 0.67, 0.081),
        "image-cache": Record(2, 0.75, 0.050),
        "loader-workers": Record(15, 0.06, 0.561),
        "onednn-matmul": Record(6, 0.12, 0.240),
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
