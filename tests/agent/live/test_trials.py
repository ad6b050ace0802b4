"""What a tuning does with the boosts that have their turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout_agent import wire
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.trials import STAYS
from live_program import FACTS, Program, Speeds, candidate, kept, tune, under_way


def test_a_boost_that_learns_otherwise_is_never_switched_on() -> None:
    refused = GuardVerdict(False, "gradient error 90 % of batch noise", 0.9)
    program = Program({"bf16-autocast": 2.0, "channels-last": 1.5}, bf16_autocast=refused)
    assert kept(tune(program, "bf16-autocast", "channels-last")) == ["channels-last"]
    assert program.decided()["bf16-autocast"].verdict == "different"
    assert not any("bf16-autocast" in r.on for r in program.blocks)


@pytest.mark.parametrize("near", [False, True])
def test_an_alternative_goes_on_with_the_recipe_in_place_of_what_the_guard_refuses(near) -> None:
    """If it was near its limit, once it is refused a second time."""
    refused = GuardVerdict(False, "gradient error 80 % of batch noise", 0.8, near=near)
    program = Program({"cpu-bf16": 1.6, "fused-optimizer": 1.1}, longer=8, bf16_autocast=refused)
    program.near_for = 3
    names = ("bf16-autocast", "bf16-residual", "cpu-bf16", "fused-optimizer")
    tuning = tune(program, *names, budget_s=60.0)
    assert {"cpu-bf16", "fused-optimizer"} <= set(kept(tuning))
    blocks = [set(r.on) for r in program.records if isinstance(r, wire.BlockRun) and r.on]
    if not near:
        assert blocks[0] == {"cpu-bf16", "fused-optimizer"}
    looks = [step for name, step in program.checked if name == "bf16-autocast"][: 1 + near]
    assert min(step for name, step in program.checked if name == "cpu-bf16") - looks[-1] <= 2


NEAR = GuardVerdict(False, "gradient error 80 % of batch noise", 0.8, near=True)


@pytest.mark.parametrize("others", [(), ("channels-last",)])
def test_what_is_near_its_limit_gets_a_second_look_some_steps_later(others: tuple[str]) -> None:
    program = Program({"bf16-autocast": 2.0}, bf16_autocast=NEAR)
    assert "bf16-autocast" in kept(tune(program, "bf16-autocast", *others))
    first, second = (step for name, step in program.checked if name == "bf16-autocast")
    assert second - first >= 30


@pytest.mark.parametrize("refusals", [2, 3])
def test_what_stays_near_its_limit_gets_two_more_looks(refusals: int) -> None:
    program = Program({"bf16-autocast": 2.0}, bf16_autocast=NEAR)
    program.near_for = refusals
    tuning = tune(program, "bf16-autocast", "fused-optimizer")
    assert ("bf16-autocast" in kept(tuning)) is (refusals == 2)
    assert [name for name, _ in program.checked].count("bf16-autocast") == 3


def test_the_second_look_comes_sooner_where_steps_are_long_and_at_all_of_them_together() -> None:
    speeds: Speeds = {"bf16-autocast": 1.5, "channels-last": 1.3}
    program = Program(speeds, longer=16, bf16_autocast=NEAR, channels_last=NEAR)
    tuning = tune(program, "bf16-autocast", "channels-last", budget_s=60.0)
    assert set(kept(tuning)) == {"bf16-autocast", "channels-last"}
    first, second = sorted({step for _, step in program.checked})
    assert 10 <= second - first <= 16


def test_a_recipe_that_is_slower_is_halved_until_what_helps_is_found() -> None:
    names = ("bf16-autocast", "channels-last", "fused-optimizer", "gc-pause", "allocator")
    program = Program({"bf16-autocast": 0.4, "channels-last": 1.5})
    tuning = tune(program, *names)
    assert "channels-last" in kept(tuning)
    assert "bf16-autocast" not in kept(tuning)
    assert program.decided()["bf16-autocast"].verdict == "slower"


def test_what_is_too_small_to_be_seen_alone_stays_in_the_recipe() -> None:
    every = ("gc-pause", "fused-optimizer", "allocator", "clip-grad")
    program = Program(dict.fromkeys(every, 1.02), noise=0.02)
    tuning = tune(program, *every)
    assert len(kept(tuning)) >= 3
    assert 1.03 < tuning.state.gain < 1.15


def test_an_exact_member_that_makes_no_difference_is_not_measured_for_long() -> None:
    program = Program({"bf16-autocast": 1.8, "fused-optimizer": 1.005}, noise=0.02)
    tuning = tune(program, "bf16-autocast", "fused-optimizer", "gc-pause", seed=2)
    told = program.decided()["fused-optimizer"]
    assert "fused-optimizer" in kept(tuning) and told.reason.endswith(STAYS)
    assert told.pairs <= 6, "pairs that show whether it gains half a percent are worth nothing"


def test_a_boost_that_gains_later_trains_until_it_can_show_it() -> None:
    program = Program({})
    program.speeds["fused-optimizer"] = lambda ids: 1.5 if program.taken > 200 else 1.0
    program.unready = {"fused-optimizer": 200}
    assert kept(tune(program, "fused-optimizer")) == ["fused-optimizer"]
    first = next(r for r in program.blocks if "fused-optimizer" in r.on)
    assert first.step > 200


@pytest.mark.parametrize(("unready", "steps"), [(10**9, None), (300, 250)])
def test_nobody_waits_for_a_boost_longer_than_the_time_or_the_program_allows(
    unready: int, steps: int | None
) -> None:
    program = Program({})
    program.unready, program.planned = {"fused-optimizer": unready}, steps
    tuning = tune(program, "fused-optimizer", budget_s=60.0)
    assert tuning.state.settled
    row = program.decided()["fused-optimizer"]
    assert (row.verdict, row.why_untried) == ("untried", "no_time"), "slower was not measured"
    assert "steps" in row.reason
    assert program.on() == []


def test_what_never_took_hold_gets_no_pairs_of_its_own() -> None:
    """A recipe that is not faster is halved; the halves hold only what does something."""
    program = Program({}, noise=0.05)
    idle = {"clip-grad": "no clipping", "gc-pause": "only 3 steps: nothing was collected"}
    program.idle = idle.get  # type: ignore[method-assign]
    tuning = tune(program, "bf16-autocast", "clip-grad", "gc-pause", "fused-optimizer")
    pairs = {row.boosts: len(row.ratios) for row in tuning.comparer.compared}
    assert not any("clip-grad" in boosts for boosts in list(pairs)[1:])
    decided = program.decided()
    row = decided["clip-grad"]
    assert (row.verdict, row.reason) == ("declined", "did not engage: no clipping")
    assert decided["gc-pause"].verdict == "same", "it may still take hold"


def test_one_that_never_takes_hold_is_let_go_after_a_few_steps() -> None:
    program = Program({}, noise=0.05)
    program.idle = lambda boost: "no clipping"  # type: ignore[method-assign]
    tuning = tune(program, "clip-grad")
    assert program.decided()["clip-grad"].verdict == "declined"
    assert [len(row.ratios) for row in tuning.comparer.compared] == [1]


def test_whether_harmless_rounding_is_worth_keeping_waits_for_all_else() -> None:
    speeds: Speeds = {"bf16-autocast": 1.04, "fused-optimizer": 1.03}
    program = Program(speeds, noise=0.03)
    tune(program, "bf16-autocast", "fused-optimizer", "gc-pause", "cpu-threads", budget_s=60.0)
    ends = [record.id for record in program.told]
    assert ends[-1] == "bf16-autocast", "it was compared to the end"
    assert "beside all others" in program.decided()["bf16-autocast"].reason


def test_exact_boosts_that_promise_little_leave_time_for_what_rounds() -> None:
    """One member costs what another gains, so the recipe shows little, and steps are long."""
    found = 0
    for seed in range(20):
        speeds: Speeds = {"bf16-autocast": 1.12, "channels-last": 0.97}
        program = Program(speeds, noise=0.05, longer=8, seed=seed)
        exact = ("allocator", "channels-last", "fused-optimizer", "gc-pause")
        found += "bf16-autocast" in kept(tune(program, "bf16-autocast", *exact, budget_s=50.0))
    assert found >= 12


def test_pairs_taken_beside_a_boost_that_made_no_difference_count_without_it() -> None:
    program = Program({"trim-padding": 1.15, "bf16-residual": 0.99}, 0.02)
    first = [candidate(name, 1.2) for name in ("allocator", "bf16-residual")]
    tuning, padding = under_way(program, first, 1.2), candidate("trim-padding", 1.2)

    def finish(story):
        """Let the program train until the story ends; returns its result."""
        next(story)
        while True:
            try:
                story.send(program.tick())
            except StopIteration as end:
                return end.value

    def pairs() -> int:
        on = tuning.state.on
        compare = tuning.comparer.compare([padding], on, [*on, padding.order], most_s=0.0)
        return finish(compare).pairs

    before = pairs()
    finish(tuning.trials.take_out([first[1]]))
    assert kept(tuning) == ["allocator"]
    assert pairs() == before + 1


@pytest.mark.parametrize("seed", range(5))
def test_a_recipe_that_gains_less_than_it_promises_is_kept_before_it_is_refined(seed: int) -> None:
    shares = {"convolutions": 0.6, "others": 0.25, "products": 0.05, "optimizer": 0.05}
    program = Program({"bf16-autocast": 1.35, "channels-last": 0.88}, 0.05, longer=5, seed=seed)
    program.facts = lambda: replace(FACTS, shares=shares)  # type: ignore[method-assign]
    exact = "channels-last", "allocator", "fused-optimizer", "gc-pause", "clip-grad"
    tuning = tune(program, "bf16-autocast", *exact, "compile", budget_s=45.0)
    assert "bf16-autocast" in kept(tuning)
