"""Which calls without gradients come back in each step, by their lines and by what they get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flatout_agent.watch.step_calls import EQUAL, STEPS, StepCalls

MODEL = torch.nn.Linear(2, 2)


def known(inputs: Callable[[int], Any], steps: int = 2 * STEPS) -> list[bool]:
    """Of one call in each step."""
    calls = StepCalls()
    return [calls.belong(MODEL, inputs(step), step, False) for step in range(steps)]


def test_it_is_known_after_some_steps_in_a_row() -> None:
    assert known(lambda step: torch.full((3, 2), step)) == [False] * (STEPS - 1) + [True] * (
        STEPS + 1
    )


@pytest.mark.parametrize("steps", [(0, 1, 3, 4, 6, 7, 9, 10), (0, 10, 20, 30)])
def test_steps_with_gaps_are_no_row(steps: tuple[int, ...]) -> None:
    calls = StepCalls()
    assert not any(calls.belong(MODEL, torch.full((3, 2), step), step, False) for step in steps)


def test_once_known_it_may_be_missing_in_a_step() -> None:
    calls = StepCalls()
    told = [
        calls.belong(MODEL, torch.full((3, 2), step), step, False) for step in (0, 1, 2, 7, 7, 9)
    ]
    assert told == [False, False, True, True, True, True]
    assert calls.known == 1


def test_what_has_been_the_same_so_often_is_read_no_more() -> None:
    """Numbers that differ only later belong to an evaluation of another set."""
    assert not any(known(lambda step: torch.full((3, 2), step // (EQUAL + 2)), 4 * EQUAL))


def test_one_value_among_many_makes_a_difference() -> None:
    def one_hot(step: int) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor([step, 7]), 2000)

    assert known(one_hot)[-1]
    assert known(lambda step: {"x": torch.ones(3), "time": torch.tensor(step)})[-1]


def test_a_line_reached_from_elsewhere_is_another_call() -> None:
    calls = StepCalls()

    def act(step: int) -> bool:
        return calls.belong(MODEL, torch.full((3, 2), step), step, False)

    for step in range(STEPS):
        act(step)
    assert act(STEPS) is False
    assert calls.known == 1


def test_a_recursion_is_one_call_at_any_depth() -> None:
    calls = StepCalls()

    def search(step: int, depth: int) -> bool:
        if depth:
            return search(step, depth - 1)
        return calls.belong(MODEL, torch.full((3, 2), step), step, False)

    told = [search(step, 2 + step % 3) for step in range(STEPS)]
    assert told == [False] * (STEPS - 1) + [True]


def test_a_mode_of_the_script_sees_no_operator_of_ours() -> None:
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    inputs = [torch.full((3, 2), step) for step in range(2 * STEPS)]
    with Mode():
        assert not any(known(inputs.__getitem__))
    assert seen == []
