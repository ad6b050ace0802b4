"""What a tuning tries next, and what it does not try."""

from __future__ import annotations

import dataclasses

import pytest

from flatout_agent import wire
from flatout_agent.boosts import load
from flatout_agent.live import decide
from flatout_agent.live.compare import Comparer
from live_program import FACTS, Program, Speeds, candidate, kept, tune, tuning_of, under_way


def test_of_two_ways_to_round_the_lesser_is_not_tried_once_the_other_brings_more() -> None:
    facts = dataclasses.replace(FACTS, bf16_inside_float32=True)
    for gain, tried in ((2.5, False), (1.1, True)):
        program = Program({"bf16-autocast": gain, "cpu-bf16": 1.2})
        program.facts = lambda: facts  # type: ignore[method-assign]
        tune(program, "bf16-autocast", "cpu-bf16")
        assert ("cpu-bf16" in dict(program.checked)) is tried
    assert program.decided()["cpu-bf16"].verdict in ("kept", "faster")


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


@pytest.mark.parametrize("seed", range(3))
def test_a_compiler_comes_before_the_parts_of_a_recipe_that_shows_little(seed: int) -> None:
    program = Program({"compile": 1.5}, noise=0.1, longer=4, seed=seed)
    program.compile_s["compile"] = 20.0
    names = "compile", "bf16-autocast", "allocator", "fused-optimizer", "gc-pause", "clip-grad"
    shares = {"others": 0.5, "matmul": 0.3, "optimizer": 0.1}
    program.facts = lambda: dataclasses.replace(FACTS, shares=shares)  # type: ignore[method-assign]
    tuning = tune(program, *names, budget_s=110.0)
    assert "compile" in kept(tuning)
    assert set(names) <= program.decided().keys(), "each has an answer"


class Unrolled(Elementwise):
    """A loop over time, which a compiler unrolls."""

    def facts(self) -> wire.JobFacts:
        return dataclasses.replace(super().facts(), operations=28_000)


def test_a_compilation_of_minutes_is_not_begun() -> None:
    program = Unrolled({"compile": 4.0, "allocator": 1.3})
    tuning = tune(program, "compile", "allocator", budget_s=120.0)
    assert kept(tuning) == ["allocator"]
    decided = program.decided()["compile"]
    assert decided.reason.startswith("no time left: it may take 58"), decided.reason


@pytest.mark.parametrize(("better", "worse"), [("bf16-autocast", "cpu-bf16"),
                                               ("cpu-bf16", "bf16-autocast")])  # fmt: skip
def test_of_alternatives_the_faster_one_is_kept(better: str, worse: str) -> None:
    facts = dataclasses.replace(FACTS, bf16_inside_float32=True)
    program = Program({better: 2.0, worse: 1.4})
    program.facts = lambda: facts  # type: ignore[method-assign]
    assert kept(tune(program, better, worse)) == [better]
    assert not any({better, worse} <= set(r.on) for r in program.blocks)


def test_what_another_leaves_nothing_for_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("cpu-threads")
    boost = dataclasses.replace(module.BOOST, covered_by=("bf16-autocast",))
    monkeypatch.setattr(module, "BOOST", boost)
    program = Program({"bf16-autocast": 1.5, "cpu-threads": 1.5})
    assert kept(tune(program, "bf16-autocast", "cpu-threads")) == ["bf16-autocast"]
    row = program.decided()["cpu-threads"]
    assert (row.verdict, row.pairs) == ("declined", 0)
    assert row.reason == "bf16-autocast is on and leaves it nothing to do"


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


def test_other_parameters_without_a_clear_answer_are_let_go_when_the_time_is_up() -> None:
    tuning = under_way(program := Program({}))
    item = candidate("cpu-threads", 1.02, params={"threads": 0.5}, variant=1)
    tuning.decisions.open["cpu-threads"] = item, decide.Answer("unclear", 1.05, 0.97, 1.14, 6)
    program.clock += 21.0
    assert tuning.turns.best() is None
    assert tuning.decisions.open == {}
    assert program.decided()["cpu-threads"].verdict == "same"


@pytest.mark.parametrize(("affords", "compared"), [(2.0, False), (9.0, True)])
def test_an_exact_boost_is_taken_out_only_if_some_pairs_can_show_harm(
    monkeypatch: pytest.MonkeyPatch, affords: float, compared: bool
) -> None:
    monkeypatch.setattr(Comparer, "affords", lambda *_: affords)
    program = Program({"bf16-autocast": 1.8}, noise=0.0)
    tuning = tune(program, "bf16-autocast", "gc-pause", budget_s=60.0)
    assert set(kept(tuning)) == {"bf16-autocast", "gc-pause"}
    assert ("beside" in program.decided()["gc-pause"].reason) is compared
