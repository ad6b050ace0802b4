"""The story of a live tuning, told to a stand-in for the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from flatout_agent import wire
from flatout_agent.live import decide
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.recipe import IN_THE_PLAN
from flatout_agent.live.state import Tick
from live_program import FACTS, STEP_S, Program, Speeds, candidate, kept, tune, tuning_of, under_way


def test_all_that_helps_goes_on_at_once_and_what_hurts_is_taken_out() -> None:
    program = Program({"bf16-autocast": 1.8, "channels-last": 1.3, "fused-optimizer": 0.9})
    tuning = tune(program, "bf16-autocast", "channels-last", "fused-optimizer")
    assert set(kept(tuning)) == {"bf16-autocast", "channels-last"}
    first = next(r for r in program.blocks if r.on)
    assert len(first.on) == 3, "the whole recipe comes first"
    together = program.told[0]
    assert (together.verdict, len(together.together)) == ("kept", 3)
    assert together.gain == pytest.approx(1.8 * 1.3 * 0.9, rel=0.1)
    decided = program.decided()
    assert decided["fused-optimizer"].verdict == "dropped"
    assert decided["bf16-autocast"].gain == pytest.approx(1.8, rel=0.05), "measured beside the rest"
    assert {order.id for order in program.on()} == {"bf16-autocast", "channels-last"}
    assert tuning.state.settled
    assert tuning.state.gain == pytest.approx(1.8 * 1.3, rel=0.1)


def test_of_long_steps_the_first_verdict_is_there_after_eight() -> None:
    program = Program({"bf16-autocast": 0.05 * 2.0, "channels-last": 1.2}, noise=0.05)
    tune(program, "bf16-autocast", "channels-last", budget_s=60.0)
    first = program.told[0]
    assert first.id == "channels-last", "slow here: halves, and what is exact first"
    program = Program({"bf16-autocast": 2.0, "channels-last": 1.2}, noise=0.05, longer=20)
    tune(program, "bf16-autocast", "channels-last", budget_s=60.0)
    first = program.told[0]
    assert first.verdict == "kept"
    assert first.step <= 8


@pytest.mark.parametrize(("gain", "stays"), [(1.25, True), (1.0, False)])
def test_long_steps_leave_their_time_to_the_recipe_that_leads(gain: float, stays: bool) -> None:
    for seed in range(20):
        program = Program({"bf16-autocast": gain}, noise=0.03, longer=32, seed=seed)
        tuning = tune(program, "bf16-autocast", "fused-optimizer", "allocator", budget_s=40.0)
        assert ("bf16-autocast" in kept(tuning)) is stays, seed
        assert program.clock - 1_000.0 <= 40.0 + 3 * 32 * STEP_S


@pytest.mark.parametrize("late", range(3, 16))
def test_one_late_step_as_written_makes_no_gain(late: int) -> None:
    program = Program({}, noise=0.02)

    def step_s(ids: frozenset[str]) -> float:
        return 32 * STEP_S * (2.2 if program.taken == late and not ids else 1.0)

    program.step_s = step_s  # type: ignore[method-assign]
    tune(program, "bf16-autocast", "channels-last", "fused-optimizer", budget_s=60.0)
    assert not [r for r in program.told if r.verdict == "kept"]


def test_what_adds_up_to_too_much_loses_its_last_rounding_part() -> None:
    together = GuardVerdict(False, "gradient error 75 % of batch noise", 0.9)
    program = Program({"bf16-autocast": 2.0, "channels-last": 1.3}, together=together)
    tuning = tune(program, "bf16-autocast", "channels-last")
    assert kept(tuning) == ["channels-last"]
    assert program.decided()["bf16-autocast"].verdict == "dropped"
    assert tuning.state.gain == pytest.approx(1.3, rel=0.1), "it no longer counts"


def test_what_draws_goes_first_where_the_draws_differ_and_what_changes_no_call_stays() -> None:
    together = GuardVerdict(False, "more than between two runs as written", 0.9, by_draws=True)
    program = Program({}, together=together)
    names = "fast-dropout", "bf16-autocast", "gc-pause"
    tuning = under_way(program, [candidate(name, 1.1) for name in names], 1.3)
    for _ in tuning._check_together():
        pass
    dropped = [row.id for row in program.told]
    assert dropped == ["fast-dropout", "bf16-autocast"], "its verdict stays while something rounds"


def test_what_the_last_look_refuses_near_its_limit_is_looked_at_once_more() -> None:
    class Wavering(Program):
        def check_together(self, kept: Sequence[Candidate]):
            verdict = yield from super().check_together(kept)
            self.verdicts.pop("together", None)
            return verdict

    reason = "gradient error 20 % of batch noise; gradients 98.7% as long as they were"
    together = GuardVerdict(False, reason, 0.2, near=True)
    program = Wavering({"bf16-autocast": 2.0}, together=together)
    tuning = tune(program, "bf16-autocast")
    assert kept(tuning) == ["bf16-autocast"]
    assert tuning.state.verdict is not None
    assert tuning.state.verdict.passed


def test_how_fast_the_rest_is_is_known_where_no_time_is_left_to_compare() -> None:
    together = GuardVerdict(False, "gradient error 75 % of batch noise", 0.9)
    program = Program({"bf16-autocast": 2.0, "channels-last": 1.3}, together=together)

    def refused_late(kept: Sequence[Candidate]):
        program.clock += 60.0
        return Program.check_together(program, kept)

    program.check_together = refused_late  # type: ignore[method-assign]
    tuning = tune(program, "bf16-autocast", "channels-last", budget_s=60.0)
    assert kept(tuning) == ["channels-last"]
    assert tuning.state.verdict is not None
    assert tuning.state.verdict.passed  # of what is left, not of what was refused
    assert tuning.state.pairs == 1
    assert tuning.state.gain == pytest.approx(1.3, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_restless_start_is_forgotten(seed: int) -> None:
    """Others are busy on the machine while it starts."""
    program = Program(
        {"bf16-autocast": 1.25}, 0.02, slow=lambda p: 20 if p.taken < 12 else 1, seed=seed
    )
    tuning = tune(program, "bf16-autocast")
    assert kept(tuning) == ["bf16-autocast"]
    assert tuning.state.gain == pytest.approx(1.25, rel=0.1)


def test_a_gain_beyond_what_is_promised_is_not_believed_of_one_pair() -> None:
    """Long steps: those that go by at the start are the first pair's half, here disturbed ones."""
    program = Program(
        {"bf16-autocast": 1.02}, 0.02, longer=20, slow=lambda p: 5 if p.taken < 9 else 1
    )
    tune(program, "bf16-autocast", budget_s=120.0)
    assert all(row.pairs > 1 for row in program.told)


@pytest.mark.parametrize("left_s", [6.0, 60.0])
def test_one_surprising_pair_is_not_believed_where_there_is_no_time_for_another(
    left_s: float,
) -> None:
    """The only pair has a disturbed half, and what is left does not allow a second."""

    def slow(program: Program) -> float:
        return 3.0 if not program.on() and program.taken > 4 else 1.0

    program = Program({"fused-optimizer": 1.0}, noise=0.01, longer=20, slow=slow)
    tune(program, "fused-optimizer", budget_s=left_s, whole_s=5.0, started_at=1_000.0)
    assert all(row.pairs > 1 for row in program.told if row.verdict == "kept"), program.told


class Loading(Program):
    """Waits for its loader most of the time."""

    def facts(self) -> wire.JobFacts:
        loader = wire.LoaderFacts("Data", False, 32, 10_000, 0, False, False, "fork", True)
        return dataclasses.replace(FACTS, wait_share=0.65, loaders=(loader,))


def test_where_loading_takes_the_step_workers_come_first_as_many_as_promise_most() -> None:
    program = Loading({"loader-workers": 1.4, "bf16-autocast": 1.3})
    tune(program, "bf16-autocast", "loader-workers", "sample-cache")
    first = program.told[0]
    assert (first.id, first.verdict, first.params["workers"]) == ("loader-workers", "kept", 2)


@pytest.mark.parametrize(
    ("batches", "steps", "first"),
    [
        (100, None, "sample-cache"),
        (10_000, None, "loader-workers"),
        (100, 100, "loader-workers"),  # the second epoch, which reads from it, never comes
    ],
)
def test_a_cache_comes_first_where_an_epoch_fills_it_soon(
    batches: int, steps: int | None, first: str
) -> None:
    program = Loading({"loader-workers": 1.1, "sample-cache": 1.8})
    program.planned = steps
    loader = dataclasses.replace(program.facts().loaders[0], batches=batches)
    program.facts = lambda: dataclasses.replace(FACTS, wait_share=0.45, loaders=(loader,))  # type: ignore[method-assign]
    tune(program, "bf16-autocast", "loader-workers", "sample-cache")
    assert program.told[0].id == first


@pytest.mark.parametrize(("gain", "believed"), [(1.82, True), (1.1, False)])
def test_a_clear_pair_of_loading_is_left_to_the_confirmation_where_no_time_is_left(
    gain: float, believed: bool
) -> None:
    tuning = under_way(Loading({}), [], 1.0)
    tuning.budget.reserved_s = 10.0
    tuning.budget.throw_away = True
    answer = decide.Answer("unclear", gain, gain * 0.8, gain * 1.2, 1)
    assert tuning.decisions.believed([candidate("sample-cache", 1.3)], answer) is believed


def test_a_cache_that_an_earlier_process_found_faster_stays_though_it_is_not_full_yet() -> None:
    program = Loading({"sample-cache": 1.8})
    program.idle = lambda boost: "no sample was asked for a second time"  # type: ignore[method-assign]
    kept_ids = []
    for measured in ((), ("sample-cache",)):
        tuning = tuning_of(program, measured=measured)
        tuning.state.keep([candidate("sample-cache", 1.8)], 1.8, 4)
        tuning._drop_idle(tuning.state.kept)
        kept_ids.append(kept(tuning))
    assert kept_ids == [[], ["sample-cache"]]


@pytest.mark.parametrize("seed", range(4))
def test_what_one_disturbed_pair_showed_is_not_told(seed: int) -> None:
    """A burst of other programs in a block of the program as written looks like a gain of 3x."""

    def slow(program: Program) -> float:
        return 3.0 if program.taken in range(7, 13) and not program.on() else 1.0

    tuning = tune(program := Program({}, noise=0.02, slow=slow, seed=seed), "bf16-autocast")
    assert kept(tuning) == []
    assert tuning.state.gain == 1.0
    told = [r.verdict for r in program.told]
    assert told in (["kept", "dropped"], ["slower"], ["same"])


def test_two_pairs_of_a_restless_program_do_not_damn_a_boost() -> None:
    for seed in range(8):
        program = Program({"bf16-autocast": 1.6}, noise=0.35, seed=seed)
        tuning = tune(program, "bf16-autocast")
        told = program.decided()["bf16-autocast"]
        assert kept(tuning) == ["bf16-autocast"] or told.pairs > 2, seed


def test_a_program_begun_again_goes_on_from_what_is_known() -> None:
    program = Program({"bf16-autocast": 1.8, "compile": 1.4})
    on = wire.BoostOrder("bf16-autocast")
    program.switch([on])
    tuning = tune(
        program, "bf16-autocast", "compile", planned=[on], written_s=STEP_S, gain=1.8, pairs=4,
        measured=("bf16-autocast",), settled=("gc-pause",),
    )  # fmt: skip
    assert kept(tuning) == ["bf16-autocast", "compile"]
    assert tuning.state.gain == pytest.approx(1.8 * 1.4, rel=0.1)
    on_in_blocks = [set(r.on) for r in program.blocks]
    assert all("bf16-autocast" in ids for ids in on_in_blocks[:2]), "and not as written"


def begun_again(speeds: Speeds, allowed: Sequence[str], steps: int, times: int) -> list[Program]:
    """A program of so few steps, begun so often as `tune` does: each goes on from the last."""
    programs: list[Program] = []
    settled: dict[str, None] = {}
    compared: tuple[wire.Compared, ...] = ()
    for _ in range(times):
        program = Program(speeds, noise=0.03)
        programs.append(program)
        left_s = 60.0 - steps * STEP_S * len(programs)
        tuning = tune(
            program, *allowed, steps=steps, compared=compared, settled=tuple(settled),
            budget_s=left_s,
        )  # fmt: skip
        compared = tuning.comparer.compared
        left = {id_ for id_, row in program.decided().items() if row.why_untried}
        settled |= dict.fromkeys(id_ for id_ in program.decided() if id_ not in left)
    return programs


def test_a_short_program_begun_again_does_not_compare_anew_what_was_compared() -> None:
    """Rounding makes it much slower, nothing else matters: then the others get their turn."""
    speeds: Speeds = {"bf16-autocast": 0.8, "cpu-threads": 0.7}
    boosts = ["bf16-autocast", "allocator", "gc-pause", "fused-optimizer", "cpu-threads"]
    programs = begun_again(speeds, boosts, 120, 8)
    verdicts = [(row.id, row.verdict) for p in programs for row in p.decided().values()]
    assert verdicts.count(("bf16-autocast", "slower")) == 1
    assert ("cpu-threads", "slower") in verdicts
    last_words = {id_: row for p in programs for id_, row in p.decided().items()}
    assert all(row.verdict in ("slower", "same") for row in last_words.values()), last_words
    with_bf16 = [sum("bf16-autocast" in r.on for r in p.blocks) for p in programs]
    assert not any(with_bf16[3:]), with_bf16


def test_a_restless_program_begun_again_is_not_watched_for_long_once_more() -> None:
    firsts = []
    for compared in ((), (wire.Compared("gc-pause", (), (0.0,)),)):
        program = Program({"gc-pause": 1.1}, longer=8, slow=lambda p: 1.0 + 2 * (p.taken % 3 == 0))
        tune(program, "gc-pause", budget_s=60.0, compared=compared)
        firsts.append(next(r.step for r in program.records if isinstance(r, wire.BlockRun)))
    first, again = firsts
    assert again <= 16 < first


class SharesOfSteps(Program):
    """Its operations take a fifth of a usual step, and less of one that is held up."""

    products = 0.0

    def look_inside(self) -> Generator[None, Tick, None]:
        yield
        self.products = 0.2 / self.slow(self)

    def facts(self) -> wire.JobFacts:
        return dataclasses.replace(super().facts(), shares={"products": self.products})


def test_after_a_slow_start_it_is_seen_again_where_the_time_goes() -> None:
    speeds: Speeds = {"bf16-autocast": 1.15, "fused-optimizer": 1.05}
    program = SharesOfSteps(speeds, slow=lambda p: 100.0 if p.taken < 8 else 1.0)
    tuning = tune(program, "bf16-autocast", "fused-optimizer", "gc-pause", budget_s=300.0)
    assert "bf16-autocast" in kept(tuning)


def test_what_leads_by_far_is_believed_where_the_time_is_over_and_a_confirmation_follows() -> None:
    program = Program({"bf16-autocast": 1.12}, noise=0.2)
    assert kept(tune(program, "bf16-autocast", budget_s=10.0)) == ["bf16-autocast"]
    row = program.decided()["bf16-autocast"]
    assert row.reason.startswith("no time for more pairs: ")
    assert row.low is not None
    assert row.low < 1, "not beyond doubt"
    assert not wrongly_kept(noise=0.2, runs=40)


class Episodes(Program):
    """Its steps are of any length, as of an agent that plays until it falls."""

    def tick(self) -> Tick:
        return self.stepped(self.step_s(self.ids) * self._random.lognormvariate(0, 0.9))


class Disturbed(Program):
    """Its steps are long, and other programs take the cores for some of them."""

    def tick(self) -> Tick:
        return self.stepped(15 * self.step_s(self.ids) * self._random.lognormvariate(0, 1.3))


class Growing(Program):
    """Its steps grow as it learns, for some hundred steps."""

    def tick(self) -> Tick:
        grown = 0.004 * 1.015 ** min(self.taken, 150)
        return self.stepped(self.step_s(self.ids) / STEP_S * grown * self._random.uniform(0.9, 1.1))


def wrongly_kept(
    noise: float, runs: int, kind: type[Program] = Program, budget_s: float = 12.0
) -> list[wire.Decided]:
    """Of boosts that do nothing, in runs without time; also what is dropped later."""
    found = []
    for seed in range(runs):
        program = kind({}, noise=noise, seed=seed)
        tune(program, "bf16-autocast", "gc-pause", budget_s=budget_s)
        found += [row for row in program.told if row.verdict == "kept"]
    return found


@pytest.mark.parametrize("kind", [Episodes, Growing])
def test_one_pair_decides_nothing_where_steps_differ_or_grow(kind: type[Program]) -> None:
    assert not wrongly_kept(0.0, 60, kind)


def test_two_pairs_are_not_believed_of_a_gain_far_beyond_what_is_promised() -> None:
    wrong = wrongly_kept(0.0, 60, Disturbed, budget_s=20.0)
    late = [row for row in wrong if row.reason.startswith("no time for more pairs")]
    assert max(row.gain or 0.0 for row in late) < 2.0, late


@pytest.mark.parametrize("budget_s", [5.0, 20.0, 60.0])
@pytest.mark.parametrize("step_s", [0.01, 0.3, 1.5])
def test_the_time_is_kept(budget_s: float, step_s: float) -> None:
    every = ("bf16-autocast", "channels-last", "fused-optimizer", "gc-pause", "allocator")
    speeds: Speeds = {"bf16-autocast": 1.5, "compile": 1.2}
    program = Program(speeds, noise=0.1, longer=step_s / STEP_S)
    began = program.clock
    tune(program, *every, "compile", budget_s=budget_s)
    assert program.clock - began <= budget_s + 8 * step_s


@pytest.mark.parametrize("gain", [1.6, 0.5])
def test_a_plan_is_taken_as_it_is_and_looked_at_once_unless_it_is_slower_here(gain: float) -> None:
    program, planned = Program({"bf16-autocast": gain}), [wire.BoostOrder("bf16-autocast")]
    program.switch(planned)
    tuning = tune(program, "bf16-autocast", planned=planned)
    row = program.decided()["bf16-autocast"]
    if gain > 1:
        assert (kept(tuning), row.reason) == (["bf16-autocast"], IN_THE_PLAN)
        assert tuning.state.gain == pytest.approx(1.6, rel=0.1)
    else:
        assert (kept(tuning), row.verdict) == ([], "slower")


def test_a_boost_that_never_took_hold_is_not_in_the_plan() -> None:
    program = Program({"bf16-autocast": 1.8})
    program.idle = lambda boost: "no clipping" if boost == "clip-grad" else None  # type: ignore[method-assign]
    assert kept(tune(program, "bf16-autocast", "clip-grad")) == ["bf16-autocast"]
    row = program.decided()["clip-grad"]
    assert (row.verdict, row.reason) == ("declined", "did not engage: no clipping")
    assert program.told[0] == row, "it is not told as part of the recipe"


@pytest.mark.parametrize("needed", [["bf16-autocast"], []])
def test_a_boost_goes_with_the_one_that_it_needs(needed: list[str]) -> None:
    """It took hold before that one was dropped."""
    tuning = tuning_of(Program({}))
    tuning.state.keep([candidate(name, 1.1) for name in [*needed, "bf16-residual"]], 1.2, 4)
    tuning._drop_idle(tuning.state.kept)
    assert kept(tuning) == (["bf16-autocast", "bf16-residual"] if needed else [])


@pytest.mark.parametrize("reserved_s", [0.0, 10.0])
def test_a_doubtful_gain_is_left_to_the_confirmation_if_there_is_one(reserved_s: float) -> None:
    program = Program({"gc-pause": 1.03}, noise=0.2)
    tuning = under_way(program, [candidate("gc-pause", 1.02)], 1.3)
    tuning.budget.reserved_s, tuning.budget.found = reserved_s, True
    story = tuning._verify()
    next(story)
    with pytest.raises(StopIteration):
        while True:
            story.send(program.tick())
    (compared,) = tuning.comparer.compared
    assert len(compared.ratios) > 1, "the time that is left is not for anything else"
    assert kept(tuning) == (["gc-pause"] if reserved_s else [])


@pytest.mark.parametrize(
    ("first", "answer", "told"),
    [
        pytest.param(2.1, ("unclear", 0.9, 0.3, 2.7, 2), 1.0, id="hidden by a busy machine"),
        pytest.param(1.1, ("unclear", 0.97, 0.9, 1.05, 8), None, id="out of reach"),
        pytest.param(3.2, ("faster", 10.8, 4.0, 30.0, 1), 3.2, id="one disturbed pair"),
        pytest.param(3.2, ("faster", 2.9, 2.5, 3.3, 2), 2.9, id="less than at first"),
        pytest.param(2.0, ("faster", 2.4, 2.2, 2.6, 4), 2.4, id="enough pairs"),
    ],
)
def test_what_the_last_look_tells(
    first: float, answer: tuple[Any, ...], told: float | None
) -> None:
    """Of a gain that fresh processes can confirm; None: it is not kept."""
    tuning = under_way(Program({"bf16-autocast": 2.0}), [candidate("bf16-autocast", 1.5)], first)
    tuning.budget.reserved_s, tuning.budget.found = 10.0, True
    tuning.comparer.compare = lambda *_, **__: answered(decide.Answer(*answer))  # type: ignore[method-assign]
    assert not list(tuning._verify())
    assert kept(tuning) == ([] if told is None else ["bf16-autocast"])
    assert told is None or tuning.state.gain == pytest.approx(told)


def answered(answer: decide.Answer) -> Generator[None, Any, decide.Answer]:
    yield from ()
    return answer


@pytest.mark.parametrize(("budget_s", "looks"), [(30.0, 0), (200.0, 1)])
def test_the_last_look_does_not_take_the_time_of_the_confirmation(
    budget_s: float, looks: int
) -> None:
    """The Guard takes 15 s here. It has seen all of them together before."""

    class Slow(Program):
        looked = 0

        def check(self, group: Sequence[Candidate]):
            self.clock += 15.0
            return super().check(group)

        def check_together(self, kept: Sequence[Candidate]):
            self.looked += 1
            return super().check_together(kept)

    program = Slow({"bf16-autocast": 1.8})
    started = {
        "started_at": program.clock,
        "whole_s": budget_s,
        "ends_at": program.clock + budget_s,
    }
    tuning = tune(program, "bf16-autocast", "fused-optimizer", **started)
    assert "bf16-autocast" in kept(tuning)
    assert program.looked == looks


def test_a_slow_first_step_does_not_cost_the_confirmation() -> None:
    """By that step alone, the confirmation would take longer than it may."""

    class SlowStart(Program):
        def step_s(self, ids: frozenset[str]) -> float:
            return (48.0 if self.taken == 0 else 12.0) * super().step_s(ids)

    program = SlowStart({"bf16-autocast": 1.8})
    orders = {"started_at": program.clock, "whole_s": 60.0, "ends_at": program.clock + 60.0}
    tuning = tune(program, "bf16-autocast", **orders)
    assert kept(tuning) == ["bf16-autocast"]
    assert 0 < tuning.budget.reserved_s < 20


@pytest.mark.parametrize(("left_s", "search_s"), [(30.0, 10.0), (18.0, 0.0), (15.0, 15.0)])
def test_the_search_has_what_is_too_little_for_the_confirmation(
    left_s: float, search_s: float
) -> None:
    tuning = tuning_of(Program({}), "gc-pause", budget_s=left_s)
    tuning.budget.begin()
    tuning.budget.reserved_s, tuning.budget.found = 20.0, True
    assert tuning.budget.left_s == pytest.approx(search_s)
