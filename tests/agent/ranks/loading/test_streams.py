"""Random numbers of one rank alone leave the common streams where they are."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from flatout_agent.ranks import same_numbers
from flatout_agent.ranks.loading import streams
from flatout_agent.ranks.loading.streams import own_streams

MODULES = np.random.default_rng(5)


class Data:
    def __init__(self) -> None:
        self.held = [random.Random(1), np.random.RandomState(1), torch.Generator().manual_seed(1)]

    def __getitem__(self, index: int) -> list[float]:
        first, second, third = self.held
        own = [first.random(), second.rand(), torch.rand((), generator=third).item()]
        return [*own, random.random(), np.random.rand(), torch.rand(()).item(), MODULES.random()]


@pytest.fixture(autouse=True)
def begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_own", {})
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def test_the_common_streams_go_on_as_if_none_were_drawn() -> None:
    def numbers(rank: int | None) -> tuple[list[float], list[float], list[float]]:
        begin_streams()
        data, drawn = Data(), []
        for _ in range(2):
            if rank is not None:
                with own_streams(rank, data, None) as draws:
                    drawn += data[0]
                assert draws.seen
        return data[0], data[1], drawn

    alone, first, second = numbers(None), numbers(0), numbers(1)
    assert alone[:2] == first[:2] == second[:2]
    own = first[2] + second[2]
    assert len(set(own + alone[0])) == len(own) + len(alone[0])


def begin_streams() -> None:
    streams._own.clear()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    MODULES.bit_generator.state = np.random.default_rng(5).bit_generator.state


def test_no_draw_is_seen_as_none() -> None:
    with own_streams(1, Data(), None) as draws:
        pass
    assert not draws.seen


def test_what_fails_inside_leaves_them_too() -> None:
    data: Any = Data()
    before = torch.get_rng_state(), random.getstate(), data.held[0].getstate()
    with pytest.raises(ValueError, match="mine"), own_streams(1, data, None):
        data[0]
        raise ValueError("mine")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), data.held[0].getstate()) == before[1:]


def test_all_generators_are_known() -> None:
    data = Data()
    found = streams.held_generators(data, None)
    system = same_numbers.of_the_system
    assert {id(each) for each in found} == {id(each) for each in [*data.held, MODULES, *system]}
