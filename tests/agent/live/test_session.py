"""The story of a live tuning, told to a stand-in for the program: speeds are given, time is not."""

from __future__ import annotations

import dataclasses
import random
import types
from collections.abc import Callable, Generator, Sequence

import pytest

from flatout_agent import wire
from flatout_agent.boosts import load
from flatout_agent.live import paired
from flatout_agent.live.blocks import Tick
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.session import Session

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


class Program:
    """Trains at the speed that its boosts give it; the session's `Machinery`."""

    recompiles = 0

    def __init__(self, speeds: Speeds, noise: float = 0.01, **verdicts: GuardVerdict) -> None:
        self.speeds, self.noise = speeds, noise
        self.verdicts = {name.replace("_", "-"): verdict for name, verdict in verdicts.items()}
        self.records: list[wire.Record] = []
        self.taken = 0
        self.planned: int | None = None
        """Steps of the whole run, by its trainer."""
        self.finite = self.finite_as_written = True
        self.unready: dict[str, int] = {}
        """Boost -> the step from which it can show what it gains."""
        self.passes: list[float] = []
        self.checked: list[tuple[str, int]] = []
        self._on: list[wire.BoostOrder] = []
        self._random = random.Random(0)

    def tick(self) -> Tick:
        self.taken += 1
        ids = frozenset(order.id for order in self._on)
        seconds = STEP_S * (1 + self._random.gauss(0, self.noise))
        for boost in ids:
            speed = self.speeds.get(boost, 1.0)
            seconds /= speed(ids) if callable(speed) else speed
        return Tick(seconds, 32, True)

    def look_inside(self) -> Generator[None, Tick, None]:
        yield

    def compile_aside(self, item: Candidate) -> Generator[None, Tick, tuple[int, float]]:
        yield
        return 1, STEP_S

    def facts(self) -> wire.JobFacts:
        return FACTS

    def tell(self, record: wire.Record) -> None:
        self.records.append(record)

    def report(self) -> None: ...

    def steps(self) -> int:
        return self.taken

    def planned_steps(self) -> int | None:
        return self.planned

    def units_per_step(self) -> float:
        return 1.0

    def on(self) -> list[wire.BoostOrder]:
        return self._on

    def switch(self, on: Sequence[wire.BoostOrder]) -> None:
        self._on = list(on)

    def check(self, candidate: Candidate):
        yield
        yield
        self.checked.append((candidate.id, self.taken))
        verdict = self.verdicts.get(candidate.id, GuardVerdict(True, "the same", 1e-6))
        if verdict.near and candidate.again:
            return GuardVerdict(True, "small by now", 0.1)
        return verdict

    def check_together(self, kept: Sequence[Candidate]):
        yield
        bad = self.verdicts.get("together")
        if bad is not None and any(item.boost.risk.value != "exact" for item in kept):
            return bad
        return GuardVerdict(True, "together the same", 1e-6)

    def idle(self) -> str | None:
        return None

    def steps_to_ready(self, boost: str) -> int:
        return max(0, self.unready.get(boost, 0) - self.taken)

    def buffered(self) -> int:
        return 0

    def evaluations(self) -> list[float]:
        return list(self.passes)

    def sound(self) -> bool:
        return self.finite if self._on else self.finite_as_written

    def synchronized_clock(self) -> float:
        return 0.0

    def agree(self, value: float, how: str) -> float:
        return value

    # What came of it

    def decided(self) -> dict[str, wire.Decided]:
        """The last word on each boost."""
        return {r.id: r for r in self.records if isinstance(r, wire.Decided)}


def tune(
    program: Program,
    *allowed: str,
    steps: int = 20_000,
    planned: Sequence[wire.BoostOrder] = (),
    **orders: object,
) -> Session:
    """Let the session go through, at most so many steps."""
    asked = wire.LiveOrders(allowed=allowed, **{"stop": True, **orders})  # type: ignore[arg-type]
    session = Session(program, asked, Budget(asked.budget_s, asked.steps, asked.stop))
    story = session.run(planned)
    next(story)
    for _ in range(steps):
        try:
            story.send(program.tick())
        except StopIteration:
            return session
    session.left_over("the program ended before it could be tried")
    return session


def kept(session: Session) -> list[str]:
    return [item.id for item in session.state.kept]


def test_what_is_faster_stays_and_the_rest_goes() -> None:
    program = Program({"bf16-autocast": 1.8, "channels-last": 1.1, "fused-optimizer": 0.9})
    session = tune(program, "bf16-autocast", "channels-last", "fused-optimizer", "gc-pause")
    assert kept(session) == ["bf16-autocast", "channels-last"]
    decided = program.decided()
    assert decided["bf16-autocast"].gain == pytest.approx(1.8, rel=0.05)
    assert decided["bf16-autocast"].pairs == paired.CLEAR_AT, "a large gain takes the fewest pairs"
    assert decided["fused-optimizer"].verdict == "slower"
    assert decided["gc-pause"].verdict in ("same", "slower")
    assert [order.id for order in program.on()] == ["bf16-autocast", "channels-last"]
    assert session.state.settled
    assert session.state.gain == pytest.approx(1.98, rel=0.1)


def test_a_boost_that_learns_otherwise_is_never_switched_on() -> None:
    refused = GuardVerdict(False, "gradient error 90 % of batch noise", 0.9)
    program = Program({"bf16-autocast": 2.0}, bf16_autocast=refused)
    session = tune(program, "bf16-autocast")
    assert kept(session) == []
    assert program.decided()["bf16-autocast"].verdict == "different"
    assert not any("bf16-autocast" in r.on for r in program.records if isinstance(r, wire.BlockRun))


@pytest.mark.parametrize("boost", ["bf16-autocast", "channels-last"])
def test_what_is_near_its_limit_gets_a_second_look_some_steps_later(boost: str) -> None:
    near = GuardVerdict(False, "gradient error 80 % of batch noise", 0.8, near=True)
    program = Program({boost: 2.0}, **{boost.replace("-", "_"): near})
    assert kept(tune(program, boost)) == [boost]
    (_, first), (_, second) = program.checked
    assert second - first >= 30


def test_an_error_under_a_boost_drops_it() -> None:
    program = Program({"bf16-autocast": 2.0})
    program.finite = False
    assert kept(tune(program, "bf16-autocast")) == []
    assert program.decided()["bf16-autocast"].verdict == "different"


def test_a_program_whose_own_loss_is_nan_is_no_boosts_fault() -> None:
    program = Program({"bf16-autocast": 2.0})
    program.finite = program.finite_as_written = False
    assert kept(tune(program, "bf16-autocast")) == []
    decided = program.decided()["bf16-autocast"]
    assert (decided.verdict, decided.reason) == (
        "declined",
        "the loss is NaN or Inf without it as well",
    )


def test_what_adds_up_to_too_much_loses_its_last_rounding_part() -> None:
    together = GuardVerdict(False, "gradient error 75 % of batch noise", 0.9)
    program = Program({"bf16-autocast": 2.0, "channels-last": 1.3}, together=together)
    session = tune(program, "bf16-autocast", "channels-last")
    assert kept(session) == ["channels-last"]
    assert program.decided()["bf16-autocast"].verdict == "dropped"


def test_a_boost_that_the_others_made_useless_is_taken_out_again() -> None:
    def alone(ids: frozenset[str]) -> float:
        return 1.3 if "channels-last" not in ids else 0.8

    program = Program({"bf16-autocast": alone, "channels-last": 3.0})
    assert kept(tune(program, "bf16-autocast", "channels-last")) == ["channels-last"]
    assert program.decided()["bf16-autocast"].verdict == "dropped"


def test_a_dropped_one_is_tried_again_once_another_made_it_worth_it() -> None:
    def later(ids: frozenset[str]) -> float:
        return 1.4 if "bf16-autocast" in ids else 0.9

    program = Program({"channels-last": later, "bf16-autocast": 1.5})
    session = tune(program, "channels-last", "bf16-autocast")
    # bf16-autocast promises more and comes first here; alone the order would not matter
    assert set(kept(session)) == {"channels-last", "bf16-autocast"}


def test_what_is_too_small_to_be_seen_alone_is_tried_together() -> None:
    every = ("gc-pause", "fused-optimizer", "allocator", "clip-grad")
    program = Program(dict.fromkeys(every, 1.012), noise=0.02)
    program._random = random.Random(3)
    session = tune(program, *every)
    assert sorted(kept(session)) == sorted(every)
    reasons = [program.decided()[boost].reason for boost in every]
    assert sum("x together with " in reason for reason in reasons) >= 2
    assert 1.02 < session.state.gain < 1.08


def test_on_a_restless_machine_noise_is_measured_anew_once_it_is_calm() -> None:
    def calm(on: frozenset[str]) -> float:
        program.noise = 0.01 if "cpu-threads" in on else 0.2
        return 2.0

    speeds: Speeds = {"cpu-threads": calm, "fused-optimizer": 1.05}
    program = Program(speeds, noise=0.2)
    session = tune(program, "cpu-threads", "fused-optimizer")
    assert kept(session) == ["cpu-threads", "fused-optimizer"]
    assert session.state.pair_noise.deviation < 0.05


class Restless(Program):
    """Others are busy on the machine while it starts."""

    def tick(self) -> Tick:
        tick = super().tick()
        return dataclasses.replace(tick, seconds=tick.seconds * (20 if self.taken < 12 else 1))


@pytest.mark.parametrize("seed", range(5))
def test_a_restless_start_is_forgotten(seed: int) -> None:
    program = Restless({"bf16-autocast": 1.25}, noise=0.02)
    program._random = random.Random(seed)
    session = tune(program, "bf16-autocast")
    assert kept(session) == ["bf16-autocast"]
    assert program.decided()["bf16-autocast"].pairs <= 8
    assert session.state.pair_noise.deviation < 0.1


def test_two_pairs_of_a_restless_program_do_not_damn_a_boost() -> None:
    for seed in range(8):
        program = Program({"bf16-autocast": 1.6}, noise=0.35)
        program._random = random.Random(seed)
        session = tune(program, "bf16-autocast")
        told = program.decided()["bf16-autocast"]
        assert kept(session) == ["bf16-autocast"] or told.pairs > 2, seed


def test_boosts_that_exclude_each_other_are_never_on_together() -> None:
    program = Program({"bf16-autocast": 1.5, "cpu-bf16": 1.5})
    session = tune(program, "bf16-autocast", "cpu-bf16")
    assert len(kept(session)) == 1
    assert "both cannot be" in " ".join(row.reason for row in program.decided().values())


def test_what_another_leaves_nothing_for_is_not_tried() -> None:
    facts = dataclasses.replace(FACTS, models=(dataclasses.replace(FACTS.models[0], matmul=4),))
    program = Program({"bf16-autocast": 1.5, "onednn-matmul": 1.5})
    program.facts = lambda: facts
    assert kept(tune(program, "bf16-autocast", "onednn-matmul")) == ["bf16-autocast"]
    row = program.decided()["onednn-matmul"]
    assert (row.verdict, row.pairs) == ("declined", 0)
    assert row.reason == "bf16-autocast is on and leaves nothing for it"


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
    session = tune(program, "fused-optimizer", budget_s=60.0)
    assert session.state.settled
    row = program.decided()["fused-optimizer"]
    assert (row.verdict, row.why_untried) == ("untried", "no_time"), "slower was not measured"
    assert "steps" in row.reason
    assert program.on() == []


def test_what_stayed_unclear_has_its_second_turn_after_all_others(monkeypatch) -> None:
    every = ("gc-pause", "fused-optimizer", "allocator")
    program = Program(dict.fromkeys(every, 1.02), noise=0.05)
    program._random = random.Random(7)
    clock = types.SimpleNamespace(perf_counter=lambda: program.taken * STEP_S)
    monkeypatch.setattr("flatout_agent.live.budget.time", clock)
    tune(program, *every, budget_s=60.0)
    turns = [r.on[-1] for r in program.records if isinstance(r, wire.BlockRun) and r.on]
    spells = [
        boost for boost, before in zip(turns, [None, *turns], strict=False) if boost != before
    ]
    assert set(spells[:3]) == set(every), "each has its first turn ..."
    assert len(spells) > 3, "... before any has its second"
    told = [r.id for r in program.records if isinstance(r, wire.Decided)]
    assert sorted(told[:3]) == sorted(every), "each is told once, when its answer is there"


def test_a_program_that_ends_early_keeps_what_was_found() -> None:
    program = Program({"bf16-autocast": 1.8, "fused-optimizer": 1.2})
    session = tune(program, "bf16-autocast", "fused-optimizer", "gc-pause", steps=100)
    assert kept(session) == ["bf16-autocast"]
    assert not session.state.settled
    untried = [row.id for row in program.decided().values() if row.verdict == "untried"]
    assert "gc-pause" in untried


def test_what_is_unclear_when_the_program_ends_is_told_as_not_tried_to_its_end() -> None:
    """`tune` starts the program again for it."""
    program = Program({})
    session = Session(program, wire.LiveOrders(allowed=("gc-pause",)), _budget(300))
    item = Candidate("gc-pause", {}, load("gc-pause").BOOST, 1.02)
    session._turns.open["gc-pause"] = item, paired.Answer("same", 1.05, 0.97, 1.14, 6)
    session.left_over("the program ended before it could be tried")
    row = program.decided()["gc-pause"]
    assert (row.verdict, row.pairs, row.why_untried) == ("untried", 6, "program_ended")
    assert row.reason == "the program ended: 1.05x so far [0.97-1.14]"


def test_what_cannot_pay_in_the_steps_that_are_left_is_not_tried() -> None:
    program = Program({"compile": 1.1})
    tune(program, "compile", steps=4000, stop=False)
    assert program.decided()["compile"].verdict == "untried", "a run of unknown length"
    program = Program({"compile": 1.1})
    session = Session(program, wire.LiveOrders(allowed=("compile",), steps=300), _budget(300))
    story = session.run(())
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


def _budget(steps: int) -> Budget:
    return Budget(None, steps, throw_away=False)


def test_no_budget_left_is_told_as_not_tried() -> None:
    program = Program({"bf16-autocast": 2.0})
    tune(program, "bf16-autocast", budget_s=0.5)
    decided = program.decided()["bf16-autocast"]
    assert decided.verdict == "untried"
    assert decided.why_untried == "no_time"
    assert decided.reason.startswith("no time left")


def test_a_plan_is_taken_as_it_is_and_looked_at_once() -> None:
    program = Program({"bf16-autocast": 1.6})
    program.switch([wire.BoostOrder("bf16-autocast")])
    session = tune(program, "bf16-autocast", planned=[wire.BoostOrder("bf16-autocast")])
    assert kept(session) == ["bf16-autocast"]
    assert program.decided()["bf16-autocast"].reason.startswith("in the plan")
    assert session.state.gain == pytest.approx(1.6, rel=0.1)


def test_blocks_fit_the_program_as_written_although_a_plan_is_on() -> None:
    program = Program({"bf16-autocast": 20.0})
    program.switch([wire.BoostOrder("bf16-autocast")])
    tune(program, "bf16-autocast", planned=[wire.BoostOrder("bf16-autocast")])
    blocks_as_written = [r for r in program.records if isinstance(r, wire.BlockRun) and not r.on]
    assert max(block.steps for block in blocks_as_written[:8]) <= 5


def test_a_plan_that_is_slower_here_is_tried_like_anything_else() -> None:
    program = Program({"bf16-autocast": 0.5})
    program.switch([wire.BoostOrder("bf16-autocast")])
    session = tune(program, "bf16-autocast", planned=[wire.BoostOrder("bf16-autocast")])
    assert kept(session) == []
    assert program.decided()["bf16-autocast"].verdict == "slower"


def test_evaluation_is_measured_where_it_happens() -> None:
    program = Program({})
    facts = {"eval_seen": True, "eval_with_grad": True}
    program.facts = lambda: dataclasses.replace(FACTS, **facts)
    program.passes = [0.2, 0.2]
    session = Session(
        program, wire.LiveOrders(allowed=("eval-without-grad",), stop=True), _budget(10**6)
    )
    story = session.run(())
    next(story)
    with pytest.raises(StopIteration):
        for _ in range(5000):
            if program.on() and len(program.passes) < 5:
                program.passes.append(0.2 if len(program.passes) == 2 else 0.1)
            story.send(program.tick())
    assert kept(session) == ["eval-without-grad"]
    assert program.decided()["eval-without-grad"].gain == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_kept_where_nothing_is_faster(seed: int) -> None:
    program = Program({}, noise=0.03)
    program._random = random.Random(seed)
    allowed = ("bf16-autocast", "channels-last", "fused-optimizer", "gc-pause", "allocator")
    assert kept(tune(program, *allowed)) == []
