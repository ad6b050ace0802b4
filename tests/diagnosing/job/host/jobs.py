"""Jobs and their parts for the tests of HOST."""

from __future__ import annotations

from typing import Any

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Gap, Place, Profile

NEXT = Place("train.py", 92, "train_epoch", "loss.backward()")


def small_model(**changes: Any) -> Profile:
    """A step of 20 ms in which 900 kernels of 7 us take 6 ms, and the rest is launching."""
    parts = {
        Kind.TENSOR_CORES: 3.0,
        Kind.ELEMENTWISE: 2.0,
        Kind.NORMALISATION: 1.0,
        Kind.REDUCTION: 0.0,
        Kind.OPTIMIZER: 0.3,
        Kind.CONVERSION: 0.0,
        Kind.OTHER: 0.0,
        Kind.COPY: 0.0,
        Kind.WAIT_DATA: 0.0,
        Kind.WAIT_SYNC: 0.0,
        Kind.WAIT_OTHER: 0.0,
        Kind.WAIT_HOST: 13.7,
    }
    gaps = (Gap(Kind.WAIT_HOST, 13.7, 800.0, "aten::mm", NEXT),)
    small = made.changed(
        made.profile(parts),
        gaps=gaps,
        anatomy__parts__0__launches=0.0,
        anatomy__parts__1__launches=300.0,
        anatomy__parts__2__launches=600.0,
        job__models__0__compiled=False,
    )
    changed: Profile = made.changed(small, **changes)
    return changed
