"""The story of a live tuning, told to a stand-in for the program: its speeds are given, and its
clock runs with its steps.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from flatout_agent import wire
from flatout_agent.boosts import load
from flatout_agent.live import decide
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.compare import Comparer
from flatout_agent.live.decisions import BROKEN
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.recipe import IN_THE_PLAN, Tuning
from flatout_agent.live.state import Checked, Tick
from flatout_agent.live.trials import STAYS
from live_program import LiveProgram

FACTS = wire.JobFacts(
    torch="2.13.0",
    python="3.11.7",
    system="linux",
    device="cpu",
    bf16=True,
    cores=2,
    threads=2,
    models=(wire.ModelFacts("Net", 1_000_000, "float32", "cpu", conv2d=20, matmul=1),),
    optimizers=(wire.OptimizerFacts("AdamW", True, 1_000_000, 40, "float32", None, None),),
    compiler=True,
    step_s=0.05,
    wait_share=0.0,
)
STEP_S = 0.05
Speeds = dict[str, float | Callable[[frozenset[str]], float]]


class Program(LiveProgram):
    """Trains at the speed that its boosts give it."""

    def __init__(
        self,
        speeds: Speeds,
        noise: float = 0.01,
        longer: float = 1.0,
        slow: Callable[[Program], float] = lambda program: 1.0,
        seed: int = 0,
        **verdicts: GuardVerdict,
    ) -> None:
        """longer: so many times STEP_S. slow: how many times as long a disturbed step seems."""
        super().__init__(clock=1_000.0)
        self.speeds, self.noise, self.longer, self.slow = speeds, noise, longer, slow
        self.verdicts = {name.replace("_", "-"): verdict for name, verdict in verdicts.items()}
        self.compile_s: dict[str, float] = {}
        """Seconds that the first call under a boost takes."""
        self.planned: int | None = None
        """Steps of the whole run, by its trainer."""
        self.unsound = ""
        """Under this boost the loss is not finite; "always": also without one."""
        self.unready: dict[str, int] = {}
        """Boost -> the step from which it can show what it gains."""
        self.checked: list[tuple[str, int]] = []
        self.near_for = 1
        """A boost that is near its limit passes after so many refusals."""
        self._random = random.Random(seed)

    def tick(self) -> Tick:
        tick = self.stepped(self.step_s(self.ids) * (1 + self._random.gauss(0, self.noise)))
        return dataclasses.replace(tick, seconds=tick.seconds * self.slow(self))

    def step_s(self, ids: frozenset[str]) -> float:
        seconds = STEP_S * self.longer
        for boost in ids:
            speed = self.speeds.get(boost, 1.0)
            seconds /= speed(ids) if callable(speed) else speed
        return seconds

    def facts(self) -> wire.JobFacts:
        return FACTS

    def planned_steps(self) -> int | None:
        return self.planned

    def check(self, group: Sequence[Candidate]):
        yield
        yield
        self.checked += [(candidate.id, self.taken) for candidate in group]
        refused: dict[str, GuardVerdict] = {}
        for candidate in group:
            self.clock += self.compile_s.pop(candidate.id, 0.0)
            verdict = self.verdicts.get(candidate.id, GuardVerdict(True, "the same", 1e-6))
            looks = [name for name, _ in self.checked].count(candidate.id)
            if not verdict.passed and not (verdict.near and looks > self.near_for):
                refused[candidate.id] = verdict
        sound = [candidate for candidate in group if candidate.id not in refused]
        return Checked(sound, refused, GuardVerdict(True, "the same", 1e-6))

    def check_together(self, kept: Sequence[Candidate]):
        yield
        bad = self.verdicts.get("together")
        if bad is not None and any(item.boost.risk.value != "exact" for item in kept):
            return bad
        return GuardVerdict(True, "together the same", 1e-6)

    def steps_to_ready(self, boost: str) -> int:
        return max(0, self.unready.get(boost, 0) - self.taken)

    def sound(self) -> bool:
        return self.unsound not in {"always", *self.ids}

    # What came of it

    def decided(self) -> dict[str, wire.Decided]:
        """The last word on each boost."""
        return {r.id: r for r in self.records if isinstance(r, wire.Decided)}


def tuning_of(program: Program, *allowed: str, **orders: object) -> Tuning:
    """It has not begun."""
    asked = wire.LiveOrders(allowed=allowed, **orders)  # type: ignore[arg-type]
    return Tuning(program, asked, Budget(asked, program.now))


def under_way(program: Program, kept: Sequence[Candidate] = (), gain: float = 1.0) -> Tuning:
    """Its time has begun, and these were kept after one pair."""
    tuning = tuning_of(program, budget_s=20.0, stop=True)
    tuning.budget.begin()
    tuning.state.written_s = STEP_S
    if kept:
        tuning.state.keep(list(kept), gain, 1)
    return tuning


def candidate(boost: str, promise: float, **more: Any) -> Candidate:
    return Candidate(boost, more.pop("params", {}), load(boost).BOOST, promise, **more)


def tune(
    program: Program,
    *allowed: str,
    steps: int = 20_000,
    planned: Sequence[wire.BoostOrder] = (),
    **orders: object,
) -> Tuning:
    """Let the tuning go through, at most so many steps."""
    tuning = tuning_of(program, *allowed, **{"stop": True, **orders})
    story = tuning.run(planned)
    next(story)
    for _ in range(steps):
        try:
            story.send(program.tick())
        except StopIteration:
            return tuning
    tuning.decisions.left_over("the program ended before it could be tried")
    return tuning


def kept(tuning: Tuning) -> list[str]:
    return tuning.state.kept_ids


def test_all_that_helps_goes_on_at_once_and_what_hurts_is_taken_out() -> None:
    program = Program({"bf16-autocast": 1.8, "channels-last": 1.3, "fused-optimizer": 0.9})
    tuning = tune(program, "bf16-autocast", "channels-last", "fused-optimizer")
    assert set(kept(tuning)) == {"bf16-autocast", "channels-last"}
    first = next(r for r in program.records if isinstance(r, wire.BlockRun) and r.on)
    assert len(first.on) == 3, "the whole recipe comes first"
    together = next(r for r in program.records if isinstance(r, wire.Decided))
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
    (first, *_) = [r for r in program.records if isinstance(r, wire.Decided)]
    assert first.id == "channels-last", "slow here: halves, and what is exact first"
    program = Program({"bf16-autocast": 2.0, "channels-last": 1.2}, noise=0.05, longer=20)
    tune(program, "bf16-autocast", "channels-last", budget_s=60.0)
    (first, *_) = [r for r in program.records if isinstance(r, wire.Decided)]
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
    assert not [r for r in program.records if isinstance(r, wire.Decided) and r.verdict == "kept"]


def test_a_boost_that_learns_otherwise_is_never_switched_on() -> None:
    refused = GuardVerdict(False, "gradient error 90 % of batch noise", 0.9)
    program = Program({"bf16-autocast": 2.0, "channels-last": 1.5}, bf16_autocast=refused)
    assert kept(tune(program, "bf16-autocast", "channels-last")) == ["channels-last"]
    assert program.decided()["bf16-autocast"].verdict == "different"
    assert not any("bf16-autocast" in r.on for r in program.records if isinstance(r, wire.BlockRun))


NEAR = GuardVerdict(False, "gradient error 80 % of batch noise", 0.8, near=True)


@pytest.mark.parametrize("others", [(), ("channels-last",)])
def test_what_is_near_its_limit_gets_a_second_look_some_steps_later(others: tuple[str]) -> None:
    program = Program({"bf16-autocast": 2.0}, bf16_autocast=NEAR)
    assert "bf16-autocast" in kept(tune(program, "bf16-autocast", *others))
    first, second = (step for name, step in program.checked if name == "bf16-autocast")
    assert second - first >= 30


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


def test_of_two_ways_to_round_the_lesser_is_not_tried_once_the_other_brings_more() -> None:
    facts = dataclasses.replace(FACTS, bf16_inside_float32=True)
    for gain, tried in ((2.5, False), (1.1, True)):
        program = Program({"bf16-autocast": gain, "cpu-bf16": 1.2})
        program.facts = lambda: facts  # type: ignore[method-assign]
        tune(program, "bf16-autocast", "cpu-bf16")
        assert ("cpu-bf16" in dict(program.checked)) is tried
    assert program.decided()["cpu-bf16"].verdict in ("kept", "faster")


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


def test_what_adds_up_to_too_much_loses_its_last_rounding_part() -> None:
    together = GuardVerdict(False, "gradient error 75 % of batch noise", 0.9)
    program = Program({"bf16-autocast": 2.0, "channels-last": 1.3}, together=together)
    tuning = tune(program, "bf16-autocast", "channels-last")
    assert kept(tuning) == ["channels-last"]
    assert program.decided()["bf16-autocast"].verdict == "dropped"
    assert tuning.state.gain == pytest.approx(1.3, rel=0.1), "it no longer counts"


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
    told = [r for r in program.records if isinstance(r, wire.Decided)]
    assert all(row.pairs > 1 for row in told)


@pytest.mark.parametrize("left_s", [6.0, 60.0])
def test_one_surprising_pair_is_not_believed_where_there_is_no_time_for_another(
    left_s: float,
) -> None:
    """The only pair has a disturbed half, and what is left does not allow a second."""

    def slow(program: Program) -> float:
        return 3.0 if not program.on() and program.taken > 4 else 1.0

    program = Program({"fused-optimizer": 1.0}, noise=0.01, longer=20, slow=slow)
    tune(program, "fused-optimizer", budget_s=left_s, whole_s=5.0, started_at=1_000.0)
    told = [r for r in program.records if isinstance(r, wire.Decided)]
    assert all(row.pairs > 1 for row in told if row.verdict == "kept"), told


class Elementwise(Program):
    """Most of its time goes into operations that only a compiler makes faster."""

    def facts(self) -> wire.JobFacts:
        return dataclasses.replace(FACTS, shares={"others": 0.94, "optimizer": 0.02})


@pytest.mark.parametrize("seed", range(5))
def test_a_compiler_that_promises_more_than_the_recipe_does_not_wait_for_its_end(seed: int) -> None:
    speeds: Speeds = {"compile": 4.0, "allocator": 1.02, "fused-optimizer": 1.02}
    program = Elementwise(speeds, noise=0.05, longer=14, seed=seed)
    program.compile_s["compile"] = 15.0
    tuning = tune(program, "compile", "allocator", "fused-optimizer", "gc-pause", budget_s=90.0)
    assert "compile" in kept(tuning)
    decided = program.decided()
    assert decided["compile"].elapsed_s < 60.0
    assert {"allocator", "fused-optimizer", "gc-pause"} <= decided.keys(), "each has an answer"


class Unrolled(Elementwise):
    """A loop over time, which a compiler unrolls."""

    def facts(self) -> wire.JobFacts:
        return dataclasses.replace(super().facts(), operations=28_000)


def test_a_compilation_of_minutes_is_not_begun() -> None:
    program = Unrolled({"compile": 4.0, "allocator": 1.3})
    tuning = tune(program, "compile", "allocator", budget_s=120.0)
    assert kept(tuning) == ["allocator"]
    decided = program.decided()["compile"]
    assert decided.reason.startswith("no time left: it would take about 29"), decided.reason


class Loading(Program):
    """Waits for its loader most of the time."""

    def facts(self) -> wire.JobFacts:
        loader = wire.LoaderFacts("Data", False, 32, 100, 0, False, False, "fork", True)
        return dataclasses.replace(FACTS, wait_share=0.65, loaders=(loader,))


def test_where_loading_takes_the_step_workers_come_first_as_many_as_promise_most() -> None:
    program = Loading({"loader-workers": 1.4, "bf16-autocast": 1.3})
    tune(program, "bf16-autocast", "loader-workers", "sample-cache")
    first = next(r for r in program.records if isinstance(r, wire.Decided))
    assert (first.id, first.verdict, first.params["workers"]) == ("loader-workers", "kept", 2)


@pytest.mark.parametrize("seed", range(4))
def test_what_one_disturbed_pair_showed_is_not_told(seed: int) -> None:
    """A burst of other programs in a block of the program as written looks like a gain of 3x."""

    def slow(program: Program) -> float:
        return 3.0 if program.taken in range(7, 13) and not program.on() else 1.0

    tuning = tune(program := Program({}, noise=0.02, slow=slow, seed=seed), "bf16-autocast")
    assert kept(tuning) == []
    assert tuning.state.gain == 1.0
    told = [r.verdict for r in program.records if isinstance(r, wire.Decided)]
    assert told in (["kept", "dropped"], ["slower"], ["same"])


def test_two_pairs_of_a_restless_program_do_not_damn_a_boost() -> None:
    for seed in range(8):
        program = Program({"bf16-autocast": 1.6}, noise=0.35, seed=seed)
        tuning = tune(program, "bf16-autocast")
        told = program.decided()["bf16-autocast"]
        assert kept(tuning) == ["bf16-autocast"] or told.pairs > 2, seed


@pytest.mark.parametrize(("better", "worse"), [("bf16-autocast", "cpu-bf16"),
                                               ("cpu-bf16", "bf16-autocast")])  # fmt: skip
def test_of_alternatives_the_faster_one_is_kept(better: str, worse: str) -> None:
    facts = dataclasses.replace(FACTS, bf16_inside_float32=True)
    program = Program({better: 2.0, worse: 1.4})
    program.facts = lambda: facts  # type: ignore[method-assign]
    assert kept(tune(program, better, worse)) == [better]
    assert not any(
        {better, worse} <= set(r.on) for r in program.records if isinstance(r, wire.BlockRun)
    )


def test_what_another_leaves_nothing_for_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("cpu-threads")
    boost = dataclasses.replace(module.BOOST, covered_by=("bf16-autocast",))
    monkeypatch.setattr(module, "BOOST", boost)
    program = Program({"bf16-autocast": 1.5, "cpu-threads": 1.5})
    assert kept(tune(program, "bf16-autocast", "cpu-threads")) == ["bf16-autocast"]
    row = program.decided()["cpu-threads"]
    assert (row.verdict, row.pairs) == ("declined", 0)
    assert row.reason == "bf16-autocast is on and leaves it nothing to do"


def test_a_boost_that_gains_later_trains_until_it_can_show_it() -> None:
    program = Program({})
    program.speeds["fused-optimizer"] = lambda ids: 1.5 if program.taken > 200 else 1.0
    program.unready = {"fused-optimizer": 200}
    assert kept(tune(program, "fused-optimizer")) == ["fused-optimizer"]
    first = next(
        r for r in program.records if isinstance(r, wire.BlockRun) and "fused-optimizer" in r.on
    )
    assert first.step > 200


def test_nobody_waits_for_a_boost_longer_than_the_time_allows() -> None:
    program = Program({})
    program.unready = {"fused-optimizer": 10**9}
    tuning = tune(program, "fused-optimizer", budget_s=60.0)
    assert tuning.state.settled
    row = program.decided()["fused-optimizer"]
    assert (row.verdict, row.why_untried) == ("untried", "no_time"), "slower was not measured"
    assert "steps" in row.reason
    assert program.on() == []


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
    on_in_blocks = [set(r.on) for r in program.records if isinstance(r, wire.BlockRun)]
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
    with_bf16 = [
        sum("bf16-autocast" in r.on for r in p.records if isinstance(r, wire.BlockRun))
        for p in programs
    ]
    assert not any(with_bf16[3:]), with_bf16


def test_what_was_decided_stays_decided_when_the_program_ends_while_others_are_tried() -> None:
    """The group is slower, and the end comes after the exact half, while the other is tried."""
    speeds: Speeds = {"bf16-autocast": 0.7}
    boosts = ["bf16-autocast", "allocator", "gc-pause", "fused-optimizer"]
    whole = Program(speeds)
    tune(whole, *boosts, budget_s=60.0)
    program = Program(speeds)
    tune(program, *boosts, steps=whole.decided()["gc-pause"].step + 3, budget_s=60.0)
    assert program.decided()["gc-pause"].verdict == "same"
    assert program.decided()["bf16-autocast"].why_untried == "program_ended"


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
    """Of boosts that do nothing, in runs without time."""
    found = []
    for seed in range(runs):
        program = kind({}, noise=noise, seed=seed)
        tune(program, "bf16-autocast", "gc-pause", budget_s=budget_s)
        decided = [r for r in program.records if isinstance(r, wire.Decided)]
        found += [row for row in decided if row.verdict == "kept"]  # also what is dropped later
    return found


@pytest.mark.parametrize("kind", [Episodes, Growing])
def test_one_pair_decides_nothing_where_steps_differ_or_grow(kind: type[Program]) -> None:
    assert not wrongly_kept(0.0, 60, kind)


def test_two_pairs_are_not_believed_of_a_gain_far_beyond_what_is_promised() -> None:
    wrong = wrongly_kept(0.0, 60, Disturbed, budget_s=20.0)
    late = [row for row in wrong if row.reason.startswith("no time for more pairs")]
    assert max(row.gain or 0.0 for row in late) < 2.0, late


def test_what_cannot_pay_in_the_steps_that_are_left_is_not_tried() -> None:
    program = Program({"compile": 1.1})
    tune(program, "compile", steps=4000, stop=False)
    assert program.decided()["compile"].verdict == "untried", "a run of unknown length"
    program = Program({"compile": 1.1})
    story = tuning_of(program, "compile", steps=300).run(())
    next(story)
    with pytest.raises(StopIteration):
        for _ in range(400):
            story.send(program.tick())
    assert program.decided()["compile"].why_untried == "not_worth_it"
    assert "earn" in program.decided()["compile"].reason


def test_the_trainers_number_of_steps_counts_where_the_user_gives_none() -> None:
    for planned, boosts in ((300, []), (10**6, ["compile"])):
        program = Program({"compile": 1.5})
        program.planned = planned
        assert kept(tune(program, "compile", stop=True)) == boosts


def test_no_budget_left_is_told_as_not_tried() -> None:
    program = Program({"bf16-autocast": 2.0})
    tune(program, "bf16-autocast", budget_s=0.1)
    decided = program.decided()["bf16-autocast"]
    assert decided.verdict == "untried"
    assert decided.why_untried == "no_time"
    assert decided.reason.startswith("no time left")


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


@pytest.mark.parametrize("needed", [["bf16-autocast"], []])
def test_a_boost_goes_with_the_one_that_it_needs(needed: list[str]) -> None:
    """It took hold before that one was dropped."""
    tuning = tuning_of(Program({}))
    tuning.state.keep([candidate(name, 1.1) for name in [*needed, "bf16-residual"]], 1.2, 4)
    tuning._drop_idle(tuning.state.kept)
    assert kept(tuning) == (["bf16-autocast", "bf16-residual"] if needed else [])


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


def test_other_parameters_without_a_clear_answer_are_let_go_when_the_time_is_up() -> None:
    tuning = under_way(program := Program({}))
    item = candidate("cpu-threads", 1.02, params={"threads": 0.5}, variant=1)
    tuning.decisions.open["cpu-threads"] = item, decide.Answer("unclear", 1.05, 0.97, 1.14, 6)
    program.clock += 21.0
    assert tuning.turns.best() is None
    assert tuning.decisions.open == {}
    assert program.decided()["cpu-threads"].verdict == "same"


def test_whether_harmless_rounding_is_worth_keeping_waits_for_all_else() -> None:
    speeds: Speeds = {"bf16-autocast": 1.04, "fused-optimizer": 1.03}
    program = Program(speeds, noise=0.03)
    tune(program, "bf16-autocast", "fused-optimizer", "gc-pause", "cpu-threads", budget_s=60.0)
    ends = [record.id for record in program.records if isinstance(record, wire.Decided)]
    assert ends[-1] == "bf16-autocast", "it was compared to the end"
    assert "beside all others" in program.decided()["bf16-autocast"].reason


@pytest.mark.parametrize(("affords", "compared"), [(2.0, False), (9.0, True)])
def test_an_exact_boost_is_taken_out_only_if_some_pairs_can_show_harm(
    monkeypatch: pytest.MonkeyPatch, affords: float, compared: bool
) -> None:
    monkeypatch.setattr(Comparer, "affords", lambda *_: affords)
    program = Program({"bf16-autocast": 1.8}, noise=0.0)
    tuning = tune(program, "bf16-autocast", "gc-pause", budget_s=60.0)
    assert set(kept(tuning)) == {"bf16-autocast", "gc-pause"}
    assert ("beside" in program.decided()["gc-pause"].reason) is compared


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


def test_exact_boosts_that_promise_little_leave_time_for_what_rounds() -> None:
    """One member costs what another gains, so the recipe shows little, and steps are long."""
    found = 0
    for seed in range(20):
        speeds: Speeds = {"bf16-autocast": 1.12, "channels-last": 0.97}
        program = Program(speeds, noise=0.05, longer=8, seed=seed)
        exact = ("allocator", "channels-last", "fused-optimizer", "gc-pause")
        found += "bf16-autocast" in kept(tune(program, "bf16-autocast", *exact, budget_s=50.0))
    assert found >= 12
