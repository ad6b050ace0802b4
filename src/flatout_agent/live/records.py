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
        "allocator": Record(25, 0.85, 0.161),
        "batch-fetch": Record(6, 0.88, 0.050),
        "bf16-autocast": Record(32, 0.62, 0.145),
        "bf16-residual": Record(5, 0.57, 0.028),
        "channels-last": Record(6, 0.88, 0.050),
        "clip-grad": Record(21, 0.61, 0.024),
        "compile": Record(4, 0.17, 0.058),
        "cpu-threads": Record(32, 0.09, 0.373),
        "fast-dropout": Record(7, 0.89, 0.050),
        "fused-loss": Record(1, 0.67, 0.050),
        "fused-optimizer": Record(10, 0.75, 0.025),
        "gc-pause": Record(11, 0.62, 0.093),
        "image-cache": Record(2, 0.75, 0.050),
        "loader-workers": Record(13, 0.07, 0.626),
        "onednn-matmul": Record(5, 0.14, 0.204),
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
