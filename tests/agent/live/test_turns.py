"""Whose turn it is."""

from __future__ import annotations

from flatout_agent.boosts import load
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.paired import Answer
from flatout_agent.live.turns import LIKELIER, NEAR_AGAIN_STEPS, Turns


def candidate(boost_id: str, variant: int = 0) -> Candidate:
    return Candidate(boost_id, {"variant": variant}, load(boost_id).BOOST, 1.2, variant)


def order_of(turns: Turns, verdicts: dict[str, list[str]], steps: int = 10) -> list[str]:
    """The ids in the order of their turns; a turn takes so many steps."""
    step, ids = 0, []
    kept: list[str] = []
    while (item := turns.next(step, kept)) is not None:
        step += turns.due(item, step) + steps
        ids.append(item.id)
        verdict = verdicts.get(item.id, ["same"])
        told = verdict.pop(0) if len(verdict) > 1 else verdict[0]
        if told == "kept":
            kept.append(item.id)
        turns.ended(item, told, step, len(kept))
    return ids


def test_a_second_look_comes_as_soon_as_its_steps_are_over() -> None:
    every = ("channels-last", "bf16-autocast", "gc-pause", "allocator", "fused-optimizer")
    turns = Turns([candidate(name) for name in every])
    order = order_of(turns, {"channels-last": ["near", "kept"]}, steps=NEAR_AGAIN_STEPS // 2)
    assert order[:5] == [*every[:3], "channels-last", "allocator"]


def test_a_second_look_comes_before_what_compiles() -> None:
    turns = Turns([candidate("bf16-autocast"), candidate("compile")])
    order = order_of(turns, {"bf16-autocast": ["near", "kept"]})
    assert order == ["bf16-autocast", "bf16-autocast", "compile"]


def test_a_second_look_waits_for_its_steps_where_nothing_else_is_left() -> None:
    turns = Turns([candidate("bf16-autocast")])
    item = turns.next(7, [])
    assert item is not None
    turns.ended(item, "near", 10, 0)
    again = turns.next(12, [])
    assert again is not None
    assert (again.id, again.again) == ("bf16-autocast", True)
    assert turns.due(again, 12) == NEAR_AGAIN_STEPS - 2


def test_other_parameters_come_after_all_boosts_and_second_turns() -> None:
    found = [candidate("loader-workers"), candidate("channels-last"), candidate("bf16-autocast")]
    turns = Turns([*found, candidate("loader-workers", 1)])
    order = order_of(turns, {"bf16-autocast": ["kept"]})
    first = ["loader-workers", "channels-last", "bf16-autocast"]
    # bf16 on, channels-last may have become worth it
    assert order == [*first, "channels-last", "loader-workers"]


def order_with_open(queue: list[Candidate], seeming: dict[str, float]) -> list[str]:
    """The ids in turn, where first turns end open for those that seem to gain this much."""
    turns, ids = Turns(queue), []
    while (item := turns.next(0, [])) is not None:
        ids.append(item.id)
        turns.open.pop(item.id, None)
        gain = seeming.get(item.id)
        if gain is not None and not item.again:
            turns.open[item.id] = item, Answer("same", gain, 0.9, 2 * gain, 4)
            turns.ended(item, "open", 0, 0)
        else:
            turns.ended(item, "same", 0, 0)
    return ids


def test_what_seems_to_gain_far_more_than_the_next_promises_is_measured_further_first() -> None:
    names = ["bf16-autocast", "channels-last", "gc-pause"]  # each promises 1.2x
    far_more, less = 1.001 + LIKELIER * 0.2, 0.999 + LIKELIER * 0.2
    queue = [candidate(name) for name in names]
    assert order_with_open(queue, {"bf16-autocast": far_more}) == [names[0], *names]
    assert order_with_open(queue, {"bf16-autocast": less}) == [*names, names[0]]
    both = {"bf16-autocast": far_more, "channels-last": far_more + 1}
    assert order_with_open(queue, both) == [names[0], *names[:2], names[1], names[2]]


def test_what_has_no_clear_answer_yet_is_measured_further_before_anything_compiles() -> None:
    queue = [candidate("bf16-autocast"), candidate("compile")]
    assert order_with_open(queue, {"bf16-autocast": 1.05}) == [
        "bf16-autocast",
        "bf16-autocast",
        "compile",
    ]


def test_every_turn_ends() -> None:
    turns = Turns([candidate("bf16-autocast"), candidate("compile"), candidate("compile", 1)])
    order = order_of(turns, {"bf16-autocast": ["near"], "compile": ["near"]})
    assert set(order) == {"bf16-autocast", "compile"}
