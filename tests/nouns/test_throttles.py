"""The driver's reasons for lower clocks, and the words that profiles have for them."""

from __future__ import annotations

from flatout.nouns import throttles


def test_each_word_once_and_none_for_what_is_no_load() -> None:
    reasons = ("gpu_idle", *throttles.HEAT, *throttles.POWER, "applications_clocks_setting")
    assert throttles.words(reasons) == ("thermal", "power")


def test_a_reason_is_known_by_its_name_and_by_its_word() -> None:
    assert throttles.any_of(("thermal",), throttles.HEAT)
    assert throttles.any_of(("hw_thermal_slowdown",), throttles.HEAT)
    assert throttles.any_of(("hardware slowdown",), throttles.BRAKE)
    assert not throttles.any_of(("hardware slowdown", "power"), throttles.POWER_BRAKE)
    assert not throttles.any_of((), throttles.HEAT)
