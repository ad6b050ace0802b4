"""Memory over time by category: what persists from step to step, and what does not."""

from __future__ import annotations

import dataclasses

from flatout.nouns.profile import MemoryPoint, Profile

VARYING = "activations and gradients"


def by_category(profile: Profile) -> Profile:
    """The profile with memory curves by category besides the total, if the agent reported sizes.

    An accelerator's allocator counts everything. On a CPU torch's recorder counts from its own
    start: weights and optimizer state were allocated earlier and are added.
    """
    loop, total_points = (
        profile.seen,
        [point for point in profile.memory if point.category == "all"],
    )
    if loop is None or loop.parameter_bytes is None or not total_points:
        return profile
    constant_bytes = {"parameters": loop.parameter_bytes, "optimizer": loop.optimizer_bytes or 0}
    baseline_bytes = 0 if profile.anatomy.device == "cpu" else sum(constant_bytes.values())
    varying_points = [
        dataclasses.replace(point, bytes=max(point.bytes - baseline_bytes, 0), category=VARYING)
        for point in total_points
    ]
    end_points = (total_points[0], total_points[-1])
    constant_points = [
        MemoryPoint(end.at_ms, amount, name)
        for name, amount in constant_bytes.items()
        if amount
        for end in end_points
    ]
    return dataclasses.replace(profile, memory=(*profile.memory, *constant_points, *varying_points))
