"""Shared by the checks of attention that is not fused."""

from __future__ import annotations

from flatout.diagnosing.job import savings
from flatout.nouns.profile import Profile

MATH = r"aten::_scaled_dot_product_attention_math\w*"
"""Torch's own attention, made of single operators."""
SAVED, SAVED_CPU = 0.5, 0.3


def saved(profile: Profile) -> float:
    """Cautious share of the time of these operators that a fused kernel saves."""
    return SAVED if savings.accelerated(profile) else SAVED_CPU
