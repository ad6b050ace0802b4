"""Lines from a second recording whose step held more or fewer operators than the first one's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.profiling.trace.attribution import look
from flatout.profiling.trace.recording import Category
from flatout.profiling.trace.twins import _lengths, align
from profiling.trace.making import BACKWARD, Trace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
Op = tuple[str, int]
"""Name, and the line it comes from."""
Phase = tuple[str, list[Op]]
"""The annotation around it, if any."""


def trace(steps: list[list[Phase]], *, stacks: bool) -> tuple[Trace, dict[int, int]]:
    """A recording, and the true line by the begin (us) of each operator."""
    made, truth, at = Trace(), {}, 0
    for number, phases in enumerate(steps):
        begin = at
        at += 10
        for around, operators in phases:
            first = at
            at += 2
            for name, line in operators:
                truth[at + 2] = line
                if stacks:
                    made.add("python_function", f"train.py({line}): l{line}", at, at + 9)
                made.op(f"aten::{name}", at + 2, at + 8).op(f"aten::{name}_inner", at + 3, at + 5)
                at += 10
            if around:
                made.mark(around, first, at)
            at += 2
        made.mark(f"ProfilerStep#{number}", begin, at)
    return made, truth


def given_places(
    ours: list[list[Phase]], theirs: list[list[Phase]]
) -> list[tuple[int, int | None]]:
    """For each operator of ours the true line and the one that was found."""
    made, truth = trace(ours, stacks=False)
    detailed, _ = trace(theirs, stacks=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        seen = look(made.recording(path), detailed.recording(path, "detail.json"))
    events, found = seen.recording.events, []
    for row in seen.recording.rows(Category.OPERATOR).tolist():
        begin = round(events.begin[row] / 1000)
        place = seen.source.place(row)
        line = truth[begin] if begin in truth else truth[begin - 1]
        found.append((line, place and place.line))
    return found


NAMES = st.lists(st.integers(0, 2), max_size=8)
OPS = st.lists(st.sampled_from(["relu", "copy_", "sum"]), min_size=1, max_size=6)


@st.composite
def pairs(draw) -> tuple[list[list[Phase]], list[list[Phase]]]:
    """Phases with lines of their own, one of them as long as its data wants it in each step."""
    line, phases = 0, []
    for number in range(draw(st.integers(1, 4))):
        operators = []
        for name in draw(OPS):
            line += 1
            operators.append((name, line))
        phases.append((draw(st.sampled_from(["", LOADER, f"mine {number}"])), operators))
    varying = draw(st.integers(0, len(phases) - 1))

    def step() -> list[Phase]:
        around, operators = phases[varying]
        length = draw(st.integers(0, 3 * len(operators)))
        repeated = [operators[at % len(operators)] for at in range(length)]
        return [*phases[:varying], (around, repeated), *phases[varying + 1 :]]

    return [step() for _ in range(draw(st.integers(1, 3)))], [step()]


@given(pair=pairs())
def test_every_place_is_the_true_one(pair):
    assert [one for one in given_places(*pair) if one[1] not in (None, one[0])] == []


def test_steps_that_are_alike_have_all_places():
    step = [(LOADER, [("copy_", 1), ("copy_", 2)]), ("", [("copy_", 3), ("relu", 4), ("copy_", 5)])]
    found = given_places([step, step], [step])
    assert len(found) == 20
    assert all(true == said for true, said in found)


@pytest.mark.parametrize("mine", [1, 3, 9])
def test_what_varies_inside_of_the_loader_moves_nothing_outside(mine):
    outside = ("", [("copy_", 3), ("sum", 4), ("copy_", 5)])
    ours = [(LOADER, [("copy_", 1), ("sum", 2)] * mine), outside]
    theirs = [(LOADER, [("copy_", 1), ("sum", 2)] * 3), outside]
    found = given_places([ours], [theirs])
    assert all(true == said for true, said in found if true > 2)
    assert {said for true, said in found if true <= 2} <= {1, 2, None}


def test_the_lines_of_a_branch_not_taken_there_are_not_known():
    before, after = [("relu", 1), ("sum", 2), ("abs", 3)], [("relu", 6), ("exp", 7), ("abs", 8)]
    found = given_places([[("", [*before, ("log", 4), *after])]], [[("", [*before, *after])]])
    assert [said for true, said in found if true == 4] == [None, None]
    assert all(true == said for true, said in found if true != 4)


def test_a_backward_has_the_line_of_its_own_forward():
    """By autograd's number, though its step's backward came in another order there."""

    def steps(*order: int, stacks: bool) -> Trace:
        made = Trace().steps(0, 1000)
        for number in (1, 2):
            at = 100 * number
            if stacks:
                made.add("python_function", f"train.py({number}): f{number}", at, at + 50)
            made.op("aten::mul", at + 1, at + 20, **{"Sequence number": number, "Fwd thread id": 0})
        for place, number in enumerate(order):
            args = {"Sequence number": number, "Fwd thread id": 1}
            at = 500 + 100 * place
            made.op("MulBackward0", at, at + 20 + number, BACKWARD, **args)
        return made

    with tempfile.TemporaryDirectory() as folder:
        times = steps(2, 1, stacks=False).recording(Path(folder))
        detail = steps(1, 2, stacks=True).recording(Path(folder), "detail.json")
    seen = look(times, detail)
    rows = np.flatnonzero(seen.source.backward)
    assert [seen.source.place(row).line for row in rows.tolist()] == [2, 1]


@given(
    names=st.lists(st.integers(0, 2), max_size=8), others=st.lists(st.integers(0, 2), max_size=8)
)
def test_the_table_counts_common_sequences(names, others):
    known = {(0, 0): 0}
    for i in range(len(names) + 1):
        for j in range(len(others) + 1):
            pair = i and j and names[i - 1] == others[j - 1]
            ways = [known.get((i - 1, j), 0), known.get((i, j - 1), 0)]
            known[i, j] = max(*ways, known[i - 1, j - 1] + 1 if pair else 0)
    found = _lengths(np.array(names, np.int64), np.array(others, np.int64))
    assert {(i, j): int(found[i, j]) for i, j in np.ndindex(found.shape)} == known


def test_long_steps_are_aligned_from_both_ends():
    mine = np.arange(9000) % 4000
    theirs = np.delete(mine, np.arange(4500, 4550))
    count = len(theirs)
    where, meaning = np.arange(count), np.arange(count).astype(np.uint64)
    found, same = align(mine, theirs, where, meaning)
    truth = np.r_[np.arange(4500), np.full(50, -1), np.arange(4500, count)]
    assert (found == truth).all() and same[found >= 0].all()


def test_long_steps_that_differ_everywhere_are_matched_by_their_neighbours():
    """A loop of which each turn flips its image or not: by chance, so no two steps are alike."""
    turn, flip = np.arange(40), 99

    def step(seed: int) -> np.ndarray:
        chance = np.random.default_rng(seed)
        turns = [[flip, *turn] if chance.random() < 0.5 else turn for _ in range(128)]
        return np.concatenate([np.asarray(names) for names in turns])

    mine, theirs = step(1), step(2)
    found, same = align(mine, theirs, theirs, theirs.astype(np.uint64))
    assert (found >= 0).mean() > 0.99
    assert (theirs[found[found >= 0]] == mine[found >= 0]).all() and same[found >= 0].all()
    assert (np.diff(found[(found >= 0) & (mine == 20)]) >= 0).all(), "in the same order"


def test_neighbours_on_two_lines_tell_none():
    names = np.tile(np.arange(50), 100)
    mine, places = np.insert(names, 2500, 7), np.arange(len(names)) // 2500
    found, _ = align(mine, names, places, np.zeros(len(names), np.uint64))
    middle = found[1500:3500]
    known = middle >= 0
    assert (places[middle[known]] == (np.arange(1500, 3500)[known] > 2500)).all()
