"""What PCIe carries."""

from __future__ import annotations

import itertools

import pytest

from flatout.knowledge import pcie


def test_each_generation_carries_about_twice_as_much() -> None:
    for slower, faster in itertools.pairwise(sorted(pcie.LANE_GB_PER_S)):
        ratio = pcie.LANE_GB_PER_S[faster] / pcie.LANE_GB_PER_S[slower]
        assert ratio == pytest.approx(2.0, rel=0.05)


def test_a_slot() -> None:
    assert pcie.gb_per_s(4, 16) == pytest.approx(31.5, rel=0.01)
    assert pcie.gb_per_s(None, 16) is pcie.gb_per_s(4, None) is pcie.gb_per_s(99, 16) is None
