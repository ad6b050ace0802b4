"""What a boost is likely to bring: its own promise, and how boosts of its kind have fared."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout_agent.live.candidates import Candidate


@dataclass(frozen=True)
class Record:
    """How a boost fared where it applied, over the scripts of a benchmark."""

    helped: float
    """Share of the cases in which it was kept, or stayed when it was taken out for once."""
    harm: float
    """How much slower it made the others, in the middle one of them: 0.1 is 10 %."""


USUAL = Record(0.5, 0.05)
"""Of boosts that have no record."""
RECORDS: dict[str, Record] = {
    "allocator": Record(0.4, 0.05),
    "batch-fetch": Record(0.9, 0.02),
    "bf16-autocast": Record(0.85, 0.1),
    "bf16-residual": Record(0.4, 0.04),
    "channels-last": Record(0.7, 0.08),
    "clip-grad": Record(0.5, 0.01),
    "compile": Record(0.6, 0.1),
    "cpu-threads": Record(0.3, 0.3),
    "cuda-graphs": Record(0.6, 0.1),
    "fast-dropout": Record(0.9, 0.02),
    "fused-loss": Record(0.7, 0.03),
    "fused-optimizer": Record(0.9, 0.02),
    "gc-pause": Record(0.5, 0.01),
    "onednn-matmul": Record(0.5, 0.05),
    "sdpa-attention": Record(0.5, 0.25),
    "tf32": Record(0.8, 0.01),
}


def gain(candidate: Candidate) -> float:
    """Log of the speed-up that trying it brings on average."""
    record = RECORDS.get(candidate.id, USUAL)
    return record.helped * math.log(max(1.001, candidate.promise))


def harm(candidate: Candidate) -> float:
    """Log of the speed-up that taking it out for once brings on average.

    A boost that promises much seldom hurts.
    """
    record = RECORDS.get(candidate.id, USUAL)
    return (1 - record.helped) * record.harm / (1 + 10 * max(0.0, candidate.promise - 1))
