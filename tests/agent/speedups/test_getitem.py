"""`tensor[key]` as replaced, and what CPython takes tensors for meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatout_agent.speedups import getitem as module
from flatout_agent.speedups.getitem import Getitem, getitem


def reader(original: Callable[..., Any], input: Tensor, key: Any) -> Any:
    return input.new_full((), 7.0) if key == 99 else None


@pytest.fixture
def held() -> Iterator[Getitem]:
    replaced = getitem()
    replaced.hold(reader)
    yield replaced
    replaced.let_go(reader)


def built() -> list[Any]:
    """As programs gather numbers: rewards, losses, indices."""
    number = torch.tensor(1.5)
    return [
        torch.tensor([number, number]),
        torch.as_tensor([[number]]),
        torch.FloatTensor([number]),
        number.new_tensor([number]),
        torch.tensor([nn.Parameter(number, requires_grad=False)]),
    ]


def test_tensors_of_numbers_are_built_as_before(held: Getitem) -> None:
    x = torch.arange(3.0)
    assert x[99] == 7.0, "it is asked"
    assert x[1] == 1.0
    assert [t.flatten()[0].item() for t in built()] == [1.5] * 5


def test_so_they_are_when_torchs_own_is_back() -> None:
    replaced = getitem()
    replaced.hold(reader)

    class Derived(Tensor):
        """Made while it is held."""

    replaced.let_go(reader)
    assert "__getitem__" not in vars(Tensor)
    assert [t.flatten()[0].item() for t in built()] == [1.5] * 5
    assert torch.tensor([torch.tensor(1.5).as_subclass(Derived)]).item() == 1.5
    assert not isinstance(torch.arange(3.0)[1], Derived)


def test_classes_with_their_own_are_left_alone() -> None:
    class Items:
        def __getitem__(self, key: Any) -> str:
            return "own"

    class Own(Items, Tensor):  # type: ignore[misc]  # another signature
        """Reads by the first base's function."""

    filled = module._slot(Own).value
    assert filled
    replaced = getitem()
    replaced.hold(reader)
    replaced.let_go(reader)
    assert module._slot(Own).value == filled


def test_nothing_is_replaced_where_the_slots_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_slots_can_be_emptied", lambda: False)
    replaced = Getitem()
    replaced.hold(reader)
    assert "__getitem__" not in vars(Tensor)
    assert [t.flatten()[0].item() for t in built()] == [1.5] * 5
    replaced.let_go(reader)
