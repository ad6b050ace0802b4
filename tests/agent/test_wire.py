"""What a program gives as its numbers and names crosses to the host, whatever kind they are of."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
import torch

from flatout_agent import wire


class _Mode(enum.Enum):
    TRAIN = "train"


class _Level(enum.IntEnum):
    HIGH = 3


class _Width(int):
    def __repr__(self) -> str:
        return "a width"


class _Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (np.int64(16), 16),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("sgd"), "sgd"),
        (np.array(3), 3),
        (torch.tensor(4), 4),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.nn.Parameter(torch.tensor([0.5])), 0.5),
        (_Mode.TRAIN, "train"),
        (_Level.HIGH, 3),
        (_Width(16), 16),
        (_Name("adam"), "adam"),
        (torch.Size((2, 3)), [2, 3]),
        ((np.int64(2), _Width(3)), [2, 3]),
        ({_Name("lr"): np.float32(0.5), "mode": _Mode.TRAIN}, {"lr": 0.5, "mode": "train"}),
        ({"both": {1}}, {"both": [1]}),
    ],
)
def test_every_kind_of_number_and_name(given: Any, read: Any) -> None:
    order = wire.BoostOrder("gc-pause", {"value": given})
    (back,) = wire.orders(wire.dump(wire.Orders("records", (order,)))).boosts
    assert back.params["value"] == read
    assert type(back.params["value"]) is type(read)


def test_what_is_neither_is_named() -> None:
    with pytest.raises(TypeError, match="is no number and no text"):
        wire.dump(wire.BoostOrder("gc-pause", {"value": object()}))  # type: ignore[dict-item]


def test_facts_of_a_model_with_a_width_of_numpys() -> None:
    """As agents of reinforcement learning make their first layer."""
    width = np.array((4, 4)).prod()
    taken = wire.StepTaken(np.int64(3), "timed", np.float32(0.5), samples=width)  # type: ignore[arg-type]
    assert wire.record(wire.dump(taken)) == wire.StepTaken(3, "timed", 0.5, samples=16)
