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
        "allocator": Record(17, 0.89, 0.033),
        "batch-fetch": Record(5, 0.86, 0.050),
        "bf16-autocast": Record(20, 0.73, 0.123),
        "bf16-residual": Record(2, 0.50, 0.036),
        "channels-last": Record(4, 0.83, 0.050),
        "clip-grad": Record(12, 0.64, 0.030),
        "compile": Record(2, 0.25, 0.040),
        "cpu-threads": Record(19, 0.10, 0.414),
        "fast-dropout": Record(3, 0.80, 0.050),
        "fused-loss": Record(1, 0.67, 0.050),
        "fused-optimizer": Record(6, 0.75, 0.033),
        "gc-pause": Record(4, 0.83, 0.050),
        "image-cache": Record(1, 0.67, 0.050),
        "loader-workers": Record(9, 0.09, 0.583),
        "onednn-matmul": Record(2, 0.25, 0.170),
        "sample-cache": Record(6, 0.38, 0.236),
        "scaled-jpeg": Record(1, 0.33, 0.056),
        "sdpa-attention": Record(2, 0.25, 0.185),
    },
    "cuda": {
        "bf16-autocast": Record(1, 0.67, 0.050),
        "compile": Record(1, 0.67, 0.050),
        "device-prefetch": Record(1, 0.33, 0.038),
        "fused-optimizer": Record(2, 0.25, 0.025),
        "loader-pin-memory": Record(1, 0.33, 0.056),
        "loader-workers": Record(2, 0.75, 0.050),
        "sdpa-attention": Record(1, 0.33, 0.075),
        "tf32": Record(3, 0.40, 0.027),
    },
}
