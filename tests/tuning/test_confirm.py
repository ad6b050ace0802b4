"""The interval of the confirmation."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.measuring.duel import Side
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Guard
from flatout.reporting.outcome import learning_words
from flatout.running.one.records import Process
from flatout.tuning import planning
from flatout.tuning.confirm import (
    as_redrawn,
    confirmation,
    interval,
    losses_differ,
    redraws,
    unclear,
    unclear_runs,
)
from flatout_agent.wire import JobFacts, ModelFacts

RATIOS = st.lists(st.floats(0.2, 5.0), min_size=1, max_size=11).map(tuple)


@pytest.mark.slow
@given(RATIOS)
def test_it_holds_the_median_and_is_always_the_same(ratios: tuple[float, ...]) -> None:
    found = interval(ratios)
    assert interval(ratios) == found
    if len(ratios) == 1:
        assert found is None
        return
    assert found is not None
    assert found[0] <= statistics.median(ratios) <= found[1]


def test_a_single_pair_has_no_interval_and_confirms_nothing() -> None:
    assert interval((2.0,)) is None
    assert unclear((1.5,))
    side = Side((100.0,), (), Process())
    single = confirmation(side, Side((80.0,), (), Process()), Guard(True, ""))
    assert (single.speedup, single.interval, single.faster) == (1.25, None, False)
    assert planning.agrees(single, 1.5)
    assert planning.agrees(single, 1.2)  # the smaller one is told
    assert not planning.agrees(single, 1.6)
    large = confirmation(side, Side((20.0,), (), Process()), Guard(True, ""))
    assert planning.agrees(large, 7.8), "5x in a pair denies no gain"
    assert not planning.agrees(large, 1.0)


def test_two_pairs_of_runs_are_enough_where_both_show_it_and_windows_take_five() -> None:
    assert not unclear_runs((1.5, 1.3))
    assert not unclear_runs((0.8, 0.7))
    assert unclear_runs((1.5, 1.05))
    assert unclear((1.5, 1.3))
    assert unclear((1.5, 1.3, 1.4, 1.4))
    assert not unclear((1.5, 1.3, 1.4, 1.4, 1.4))
    assert unclear((1.04, 1.05, 1.06))
    assert not unclear((1.04, 1.05, 1.06, 1.05, 1.04))


def test_more_pairs_that_agree_make_it_narrow() -> None:
    low, high = interval((1.31, 1.30, 1.29, 1.32, 1.30))
    assert 1.29 <= low <= high <= 1.32


OFF = Guard(False, "loss off by -4.5 sigma in the confirmation", 0.9, 1.0, 1.1, loss_sigma=-4.5)


def facts(random_forward: bool) -> JobFacts:
    model = ModelFacts("Net", 9, "float32", "cpu", random_forward=random_forward)
    return JobFacts("2.13.0", "3.11", "linux", "cpu", models=(model,))


def test_it_is_known_which_plans_draw_other_numbers() -> None:
    plan = (PlannedBoost("bf16-autocast"),)
    assert redraws(plan, facts(True))
    assert not redraws(plan, facts(False))
    assert redraws((PlannedBoost("compile"),), facts(False)), "it draws others"


def test_only_finite_losses_that_differ_may_be_excused() -> None:
    assert losses_differ(OFF)
    for change in ({"passed": True}, {"finite": False}, {"loss_sigma": None}):
        assert not losses_differ(Guard(**{**vars(OFF), **change}))


def test_a_plan_that_only_rounds_is_excused_where_all_runs_go_their_own_way() -> None:
    """As an agent does that acts on what it has learnt."""
    far = dataclasses.replace(OFF, loss_sigma=11.8)
    assert as_redrawn(far, [9.0, -6.0], redrawn=False).passed
    for own in ([9.0], [1.0, -2.0], [0.0, 0.0, 0.0], []):
        assert as_redrawn(far, own, redrawn=False) == far


def test_they_are_excused_by_runs_that_are_off_about_as_far() -> None:
    excused = as_redrawn(OFF, [1.0, -2.5])
    assert excused.passed
    assert excused.redrawn_sigma == 2.5
    assert learning_words(excused) == (
        "the same (gradient error 90% of batch noise, 110% between two runs as written;"
        " loss off by 4.5 sigma, and by 2.5 with other random numbers alone)"
    )
    for own in ([], [0.0], [1.0, -1.0, 1.2]):
        assert as_redrawn(OFF, own) == OFF


def test_one_run_with_other_numbers_may_come_close_by_chance() -> None:
    assert as_redrawn(OFF, [0.1]).passed
    assert as_redrawn(OFF, [0.1, -0.2, 0.3]) == OFF
    far = dataclasses.replace(OFF, loss_sigma=-7.0)
    assert as_redrawn(far, [0.1]) == far


def test_pairs_that_other_programs_disturbed_are_left_out_where_others_remain() -> None:
    guard = Guard(True, "")
    plan = Side((10.0, 10.0, 10.0), (), Process(), (False, False, False))
    written = Side((300.0, 12.0, 13.0), (), Process(), (True, False, False))
    some = confirmation(written, plan, guard)
    assert (some.ratios, some.untouched_ms, some.disturbed) == ((1.2, 1.3), (12.0, 13.0), False)
    written = dataclasses.replace(written, disturbed=(True, True, False))
    most = confirmation(written, plan, guard)
    assert (most.pairs, most.disturbed, most.faster) == (3, True, False)
    assert planning.agrees(most, 1.2)
    one = confirmation(
        Side((12.0,), (), Process(), (False,)),
        Side((10.0,), (), Process(), (False,)),
        guard,
    )
    assert (one.ratios, one.disturbed) == ((1.2,), False), "a single pair that nothing disturbed"
