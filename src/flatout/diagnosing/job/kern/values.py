"""What operators that the data flow names by their values cost in the measured step."""

from __future__ import annotations

from flatout.diagnosing.job import operators, savings
from flatout.nouns.profile import Profile
from flatout_agent.wire import FlowSeen


def ms(profile: Profile, flow: FlowSeen, s: float, flops: float) -> float:
    """Of a step, in operators that took `s` CPU seconds and this share of its operations.

    On an accelerator by the share of operations in the time of its products, else by the share of
    the time in operators.
    """
    if savings.accelerated(profile):
        return min(max(flops, 0.0), 1.0) * operators.total(profile, operators.products(profile))
    if flow.operators_s <= 0:
        return 0.0
    took = operators.total(profile, profile.operators)
    return min(max(s / flow.operators_s, 0.0), 1.0) * took
