"""The driver's reasons for lower clocks, and the words that profiles have for them."""

from __future__ import annotations

from flatout.nouns import throttles


def test_a_reason_is_known_by_its_name_and_by_its_word() -> None:
    assert throttles.any_of(("thermal",), throttles.HEAT)
    assert throttles.any_of(("hw_thermal_slowdown",), throttles.HEAT)
    assert throttles.any_of(("hardware slowdown",), throttles.BRAKE)
    assert not throttles.any_of(("hardware slowdown", "power"), throttles.POWER_BRAKE)
    assert not throttles.any_of((), throttles.HEAT)
