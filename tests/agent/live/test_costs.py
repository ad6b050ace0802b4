"""Time is shared out so that no boost takes what others need that had no turn yet."""

from __future__ import annotations

import pytest

from flatout_agent.boosts import load
from flatout_agent.live import paired
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.costs import Costs
from flatout_agent.live.machinery import State
from flatout_agent.wire import JobFacts


def candidate(boost_id: str, promise: float = 1.02, variant: int = 0) -> Candidate:
    return Candidate(boost_id, {}, load(boost_id).BOOST, promise, variant)


def costs(step_s: float, limit_s: float | None) -> Costs:
    state = State()
    state.now_s = step_s
    return Costs(state, Budget(limit_s, None, throw_away=True))


GC, THREADS, FUSED = (candidate(name) for name in ("gc-pause", "cpu-threads", "fused-optimizer"))


def test_of_long_steps_each_gets_the_fewest_pairs_until_all_had_their_turn() -> None:
    short_time = costs(0.3, 30.0)
    assert short_time.most_pairs(GC, [THREADS, FUSED]) == paired.FEWEST


def test_with_nobody_waiting_all_the_time_is_its_own() -> None:
    promising = candidate("bf16-autocast", 1.5)
    alone, before_others = (
        costs(0.05, 10.0).most_pairs(promising, waiting)
        for waiting in ([], [candidate(f"{name}", 1.5) for name in ("channels-last", "gc-pause")])
    )
    assert alone > before_others >= paired.FEWEST


def test_what_promises_more_gets_more() -> None:
    waiting = [candidate("channels-last", 1.3), GC]
    table = costs(0.05, 8.0)
    much = table.most_pairs(candidate("bf16-autocast", 1.5), waiting)
    assert much > table.most_pairs(candidate("fused-optimizer", 1.01), waiting)


def test_other_parameters_do_not_count_as_waiting() -> None:
    others = [candidate("loader-workers", 1.5, variant) for variant in (1, 2, 3)]
    table = costs(0.05, 8.0)
    promising = candidate("bf16-autocast", 1.5)
    assert table.most_pairs(promising, others) == table.most_pairs(promising, [])


@pytest.mark.parametrize("step_s", [0.002, 0.05, 0.3, 2.0])
def test_a_try_costs_at_least_the_guard_and_two_pairs(step_s: float) -> None:
    table = costs(step_s, None)
    assert table.least_s(GC) >= 2 * table.pair_s(GC) >= 4 * step_s


def compiled(mode: str) -> Candidate:
    module = load("compile")
    facts = JobFacts("2.13.0", "3.12", "linux", "cuda", compiler=True, step_s=0.1)
    promise = module.promise(facts, {"mode": mode})
    return Candidate("compile", {"mode": mode}, module.BOOST, promise, int(mode != "default"))


def test_another_mode_is_worth_what_it_adds_to_the_mode_that_is_kept() -> None:
    state = State()
    state.now_s = 0.1
    table = Costs(state, Budget(None, 50_000, throw_away=False))
    first, timed = compiled("default"), compiled("max-autotune-no-cudagraphs")
    assert table.compile_s(timed) > table.compile_s(first)
    assert table.gain(timed) > table.gain(first) == first.promise
    state.kept.append(first)
    assert 1.0 < table.gain(timed) < 1.1

    def refused(item: Candidate, taken: int) -> bool:
        parts = table.least_s(item), table.gain(item), table.compile_s(item)
        return table._budget.refuses(*parts, taken, state.now_s) is not None

    assert not refused(timed, 100), "in a long run it is tried"
    assert refused(timed, 47_000), "near its end it cannot be earned back"
    state.kept.clear()
    assert not refused(first, 47_000)


def test_other_parameters_of_what_compiles_nothing_are_worth_what_they_promise() -> None:
    table = costs(0.1, None)
    table._state.kept.append(candidate("loader-workers", 1.5))
    assert table.gain(candidate("loader-workers", 1.5, 1)) == 1.5
