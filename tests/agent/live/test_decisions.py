"""What a tuning tells of each boost, also when the program fails or ends."""

from __future__ import annotations

import pytest

from flatout_agent import wire
from flatout_agent.live import decide
from flatout_agent.live.decisions import BROKEN
from live_program import STEP_S, Program, Speeds, candidate, kept, tune, tuning_of


@pytest.mark.parametrize(("noise", "believed"), [(0.01, True), (0.5, False)])
def test_what_leads_when_the_time_is_up_is_kept_if_there_is_little_doubt(
    noise: float, believed: bool
) -> None:
    program = Program({"bf16-autocast": 1.2}, noise=noise, longer=32)
    names = ("bf16-autocast", "fused-optimizer")
    tuning = tuning_of(program, *names, stop=True, budget_s=60.0)
    story = tuning.run(())
    next(story)
    while tuning.comparer.so_far is None or tuning.comparer.so_far.pairs < 2:
        story.send(program.tick())
    program.clock += 60.0
    assert tuning.budget.ended
    tuning.decisions.out_of_time()
    assert kept(tuning) == (list(names) if believed else [])
    if not believed:
        row = program.decided()["bf16-autocast"]
        assert (row.verdict, row.why_untried) == ("untried", "no_time")
        assert row.reason.startswith("no time left: ")


def test_an_error_under_a_boost_drops_it_alone() -> None:
    program = Program({"bf16-autocast": 2.0, "channels-last": 1.5})
    program.unsound = "bf16-autocast"
    assert kept(tune(program, "bf16-autocast", "channels-last")) == ["channels-last"]
    assert program.decided()["bf16-autocast"].verdict == "different"


def test_where_the_loss_breaks_under_what_is_kept_nothing_that_rounds_stays() -> None:
    program = Program({"bf16-autocast": 1.8, "bf16-residual": 1.2, "allocator": 1.3})
    names = ("bf16-autocast", "bf16-residual", "allocator")
    first = [wire.BoostOrder(name) for name in names]
    program.switch(first)
    program.sound = lambda: (  # type: ignore[method-assign]
        program.taken < 40 or "bf16-autocast" not in program.ids
    )
    tuning = tune(program, *names, planned=first, written_s=STEP_S, gain=2.8, pairs=1)
    assert kept(tuning) == ["allocator"]
    for name in ("bf16-autocast", "bf16-residual"):
        row = program.decided()[name]
        assert (row.verdict, row.reason) == ("different", f"with the others: {BROKEN}")
    assert tuning.state.gain == pytest.approx(1.3, rel=0.1), "they no longer count"


def test_a_program_whose_own_loss_is_nan_is_no_boosts_fault() -> None:
    program = Program({"bf16-autocast": 2.0})
    program.unsound = "always"
    assert kept(tune(program, "bf16-autocast")) == []
    decided = program.decided()["bf16-autocast"]
    assert (decided.verdict, decided.reason) == (
        "declined",
        "the loss is NaN or Inf without it as well",
    )


def test_a_program_that_ends_early_keeps_what_was_found() -> None:
    program = Program({"bf16-autocast": 1.8, "compile": 1.2})
    tuning = tune(program, "bf16-autocast", "compile", "gc-pause", steps=24)
    assert "bf16-autocast" in kept(tuning)
    assert not tuning.state.settled
    untried = [row.id for row in program.decided().values() if row.verdict == "untried"]
    assert "compile" in untried


@pytest.mark.parametrize("throw_away", [True, False])
def test_what_leads_when_a_throw_away_program_ends_is_kept_for_the_next(throw_away: bool) -> None:
    program = Program({"bf16-autocast": 1.06, "allocator": 1.05}, noise=0.02)
    tuning = tune(program, "bf16-autocast", "allocator", steps=36, stop=throw_away)
    assert not tuning.state.settled
    rows = program.decided()
    if throw_away:
        assert set(kept(tuning)) == {"bf16-autocast", "allocator"}
        assert {row.verdict for row in rows.values()} == {"kept"}
        assert all(row.reason.startswith("the program ended: ") for row in rows.values())
    else:
        assert kept(tuning) == [], "in a run that counts nothing is kept that is not clear"


def test_what_was_decided_stays_decided_when_the_program_ends_while_others_are_tried() -> None:
    """The group is slower, the exact half shows nothing, and the end comes after the other one."""
    speeds: Speeds = {"bf16-autocast": 0.7}
    boosts = ["bf16-autocast", "allocator", "gc-pause", "fused-optimizer"]
    whole = Program(speeds)
    tune(whole, *boosts, budget_s=60.0)
    program = Program(speeds)
    tune(program, *boosts, steps=whole.decided()["bf16-autocast"].step + 3, budget_s=60.0)
    assert program.decided()["bf16-autocast"].verdict == "slower"
    assert program.decided()["gc-pause"].why_untried == "program_ended"


def fail_under(
    boost: str, *allowed: str, speeds: Speeds | None = None, **orders: object
) -> Program:
    """A program that fails in its own code as soon as it has trained a step with this boost on."""
    program = Program(speeds or {})
    tuning = tuning_of(program, *allowed, **orders)
    story = tuning.run(())
    next(story)
    while boost not in program.ids:
        story.send(program.tick())
    tuning.decisions.blame("ValueError: wrong type")
    tuning.decisions.left_over("the program ended before it could be tried")
    return program


def test_when_the_program_fails_all_that_were_being_tried_are_tried_alone_next() -> None:
    boosts = ("bf16-autocast", "allocator", "fused-optimizer")
    decided = fail_under("bf16-autocast", *boosts, stop=True).decided()
    assert {decided[boost].why_untried for boost in boosts} == {"program_failed"}
    assert decided["allocator"].reason == "the program failed under it: ValueError: wrong type"
    program = fail_under("bf16-autocast", *boosts, stop=True, alone=True)
    decided = program.decided()
    assert (decided["bf16-autocast"].verdict, decided["bf16-autocast"].why_untried) == (
        "failed",
        None,
    )
    assert decided["allocator"].why_untried != "program_failed"


def test_when_a_real_run_fails_what_is_kept_is_not_suspected() -> None:
    """It may fail for any reason: its plan is not thrown away for that."""
    for stop in (False, True):
        program = Program({"bf16-autocast": 2.0})
        tuning = tune(program, "bf16-autocast", stop=stop)
        assert kept(tuning) == ["bf16-autocast"]
        tuning.decisions.blame("ValueError: wrong type")
        assert kept(tuning) == ([] if stop else ["bf16-autocast"])


def test_pairs_of_a_comparison_that_the_end_of_the_program_cuts_off_are_told() -> None:
    program = Program({}, noise=0.05)
    tune(program, "gc-pause", "allocator", steps=70, budget_s=60.0)
    row = program.decided()["allocator"]
    assert row.why_untried == "program_ended"
    assert row.pairs > 0
    assert "so far" in row.reason


def test_what_is_unclear_when_the_program_ends_is_told_as_not_tried_to_its_end() -> None:
    """`tune` starts the program again for it."""
    program = Program({})
    tuning = tuning_of(program, "gc-pause")
    answer = decide.Answer("unclear", 1.05, 0.97, 1.14, 6)
    tuning.decisions.open["gc-pause"] = candidate("gc-pause", 1.02), answer
    tuning.decisions.left_over("the program ended before it could be tried")
    row = program.decided()["gc-pause"]
    assert (row.verdict, row.pairs, row.why_untried) == ("untried", 6, "program_ended")
    assert row.reason == "the program ended: 1.05x so far [0.97-1.14]"
