"""What holds a GPU's clocks down, and the lines against it: told alike by all kinds of checks."""

from __future__ import annotations

import dataclasses

import pytest

from flatout.diagnosing import causes
from machines.healthy import gpu

CARD = gpu()


@pytest.mark.parametrize(
    ("limit", "default", "lowered"),
    [(285.0, 300.0, True), (286.0, 300.0, False), (200.0, None, False), (None, 300.0, False)],
)
def test_a_limit_is_lowered_by_a_twentieth_or_more(
    limit: float | None, default: float | None, lowered: bool
) -> None:
    card = dataclasses.replace(CARD, power_limit_w=limit, power_limit_default_w=default)
    assert causes.lowered_limit(card) is lowered


def test_a_clock_is_told_where_both_are_known() -> None:
    card = dataclasses.replace(CARD, clock_sm_mhz=900, clock_sm_max_mhz=1410)
    assert causes.clock(card) == ("900 of 1410 MHz",)
    assert causes.clock(dataclasses.replace(card, clock_sm_mhz=None)) == ()


def test_gpus_of_one_default_are_set_by_one_line() -> None:
    cards = [
        dataclasses.replace(CARD, index=index, power_limit_default_w=watts)
        for index, watts in enumerate((400.0, 300.0, 400.0, None))
    ]
    assert causes.default_limits(cards) == [
        "nvidia-smi -i 0,2 -pl 400",
        "nvidia-smi -i 1 -pl 300",
    ]
