"""What checks of memory ask of a Profile."""

from __future__ import annotations

import itertools
import re

from flatout.nouns import units
from flatout.nouns.profile import Profile

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
EXPANDABLE = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
ASKING = re.compile(r"(cuda|hip)(Malloc|Free|HostAlloc|HostRegister)\w*")
"""Runtime calls that ask the driver for memory or return it."""


def share_used(profile: Profile) -> float | None:
    """The peak in use as a share of the device's memory, or None if unknown."""
    watched = profile.seen
    if watched is None or not watched.memory_peak_bytes or not watched.memory_total_bytes:
        return None
    return watched.memory_peak_bytes / watched.memory_total_bytes


def evidence(profile: Profile) -> str:
    """Like "72 GiB of 80 GiB in use at most"."""
    watched = profile.seen
    if watched is None or watched.memory_peak_bytes is None:
        return "memory in use is not known"
    total = f" of {units.size(watched.memory_total_bytes)}" if watched.memory_total_bytes else ""
    return f"{units.size(watched.memory_peak_bytes)}{total} in use at most"


def waited_ms(profile: Profile) -> float:
    """Milliseconds a step that the device is idle while the host asks the driver for memory."""
    return sum(gap.ms for gap in profile.gaps if ASKING.fullmatch(gap.doing))


def waited_words(waited: float) -> str:
    """The arithmetic of `waited_ms`."""
    return (
        f"the device does nothing for {units.milliseconds(waited)} a step while the host asks the "
        "driver for memory or gives it back"
    )


def growth(values: tuple[int, ...]) -> float | None:
    """Bytes a step by which memory grows steadily, or None if it does not or too little was seen.

    Steady means that seven in ten steps add some and each third of them is above the previous.
    """
    if len(values) < 6:
        return None
    added = [after - before for before, after in itertools.pairwise(values)]
    third = len(values) // 3
    first, middle, last = values[:third], values[third:-third], values[-third:]
    if sum(more > 0 for more in added) < 0.7 * len(added):
        return None
    if not max(first) <= min(middle) <= max(middle) <= min(last):
        return None
    return sum(added) / len(added)
