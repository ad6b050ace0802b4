"""What memory over time is held by: what lasts from step to step, and what comes and goes."""

from __future__ import annotations

import dataclasses

from flatout.nouns.profile import MemoryPoint, Profile

PASSING = "activations and gradients"


def told_apart(profile: Profile) -> Profile:
    """The profile with curves by category beside that of all memory, where the agent told them.

    An accelerator's allocator counts everything. On a CPU torch's recorder counts from its own
    start: weights and the optimizer's state were there before, and are added.
    """
    seen, whole = profile.seen, [point for point in profile.memory if point.category == "all"]
    if seen is None or seen.parameter_bytes is None or not whole:
        return profile
    lasting = {"parameters": seen.parameter_bytes, "optimizer": seen.optimizer_bytes or 0}
    before = 0 if profile.anatomy.device == "cpu" else sum(lasting.values())
    passing = [
        dataclasses.replace(point, bytes=max(point.bytes - before, 0), category=PASSING)
        for point in whole
    ]
    ends = (whole[0], whole[-1])
    flat = [
        MemoryPoint(end.at_ms, amount, name)
        for name, amount in lasting.items()
        if amount
        for end in ends
    ]
    return dataclasses.replace(profile, memory=(*profile.memory, *flat, *passing))
