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
        "allocator": Record(8, 0.80, 0.033),
        "bf16-autocast": Record(8, 0.70, 0.136),
        "bf16-residual": Record(2, 0.75, 0.050),
        "channels-last": Record(2, 0.75, 0.050),
        "clip-grad": Record(1, 0.33, 0.033),
        "cpu-threads": Record(8, 0.10, 0.341),
        "fused-optimizer": Record(1, 0.33, 0.033),
        "gc-pause": Record(1, 0.33, 0.038),
        "loader-workers": Record(3, 0.20, 0.106),
        "onednn-matmul": Record(2, 0.25, 0.191),
        "sample-cache": Record(2, 0.50, 0.042),
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
