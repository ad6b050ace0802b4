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


def recorded_ms(profile: Profile, flow: FlowSeen, where: str, s: float, names: str) -> float:
    """Of a step, in operators of such names on a line's forward pass, with all that they call.

    At least what the counted step's share says on a CPU: a line may be known there alone.
    """
    recorded = operators.total(
        profile,
        [
            operator
            for operator in operators.called(profile, names)
            if str(operator.where) == where and not operator.backward
        ],
    )
    return recorded if savings.accelerated(profile) else max(recorded, ms(profile, flow, s, 0.0))
