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
        "allocator": Record(15, 0.82, 0.036),
        "batch-fetch": Record(2, 0.75, 0.050),
        "bf16-autocast": Record(15, 0.76, 0.128),
        "bf16-residual": Record(3, 0.80, 0.050),
        "channels-last": Record(3, 0.80, 0.050),
        "clip-grad": Record(5, 0.57, 0.035),
        "compile": Record(1, 0.33, 0.061),
        "cpu-threads": Record(15, 0.06, 0.380),
        "fast-dropout": Record(3, 0.80, 0.050),
        "fused-optimizer": Record(7, 0.78, 0.033),
        "gc-pause": Record(7, 0.78, 0.038),
        "image-cache": Record(1, 0.33, 0.035),
        "loader-workers": Record(7, 0.11, 0.352),
        "onednn-matmul": Record(2, 0.25, 0.191),
        "sample-cache": Record(5, 0.43, 0.026),
        "scaled-jpeg": Record(1, 0.33, 0.033),
        "sdpa-attention": Record(1, 0.33, 0.089),
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
