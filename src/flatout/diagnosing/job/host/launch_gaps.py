"""Where the device waits for the host to launch: pauses of the host, and launches one by one."""

from __future__ import annotations

from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Gap, Profile

PAUSE_MS = 1.0
"""Length from which a gap is a pause: the host did something other than launching."""


def paused_ms(profile: Profile) -> float:
    """Milliseconds a step in Python's garbage collector."""
    return profile.seen.gc_s * 1000 if profile.seen is not None else 0.0


def pauses(profile: Profile) -> list[Gap]:
    """Long waits of the device for the next launch, the longest first."""
    gaps = [
        gap
        for gap in profile.gaps
        if gap.kind is Kind.WAIT_HOST and gap.count > 0 and gap.ms / gap.count >= PAUSE_MS
    ]
    return sorted(gaps, key=lambda gap: -gap.ms)


def one_by_one_ms(profile: Profile) -> float:
    """Milliseconds of waiting for launches, without pauses and collections."""
    pausing = max(sum(gap.ms for gap in pauses(profile)), paused_ms(profile))
    return max(0.0, profile.anatomy.part(Kind.WAIT_HOST) - pausing)
