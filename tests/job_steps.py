"""What the scripts in tests/jobs print, a line for each step; and that they really train."""

from __future__ import annotations

import math
import re

STEP = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)


def assert_steps(out: str, count: int) -> None:
    """`out` tells `count` steps with finite losses that move."""
    steps = STEP.findall(out)
    assert [int(index) for index, _ in steps] == list(range(1, count + 1))
    assert all(math.isfinite(float(loss)) for _, loss in steps)
    assert len({loss for _, loss in steps}) > 1, "the loss never moves: nothing is trained"
