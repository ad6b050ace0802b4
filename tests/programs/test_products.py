"""A job's products made again, by the real torch on the CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from flatout_programs import products

CONVOLUTION: dict[str, Any] = {
    "name": "aten::mkldnn_convolution",
    "shapes": [[2, 4, 8, 8], [8, 2, 3, 3], [8], [], [], [], []],
    "dtypes": ["float", "float", "float", "ScalarList", "ScalarList", "ScalarList", "Scalar"],
    "values": ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "2"],
    "backward": False,
    "share": 1.0,
}
ADDMM: dict[str, Any] = {
    "name": "aten::addmm",
    "shapes": [[8], [4, 16], [16, 8], [], []],
    "dtypes": ["float", "float", "float", "Scalar", "Scalar"],
    "values": ["", "", "", "1", "1"],
    "backward": False,
    "share": 0.5,
}


def answers(calls: list[dict[str, Any]], **orders: Any) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    threads = torch.get_num_threads()
    try:
        orders = {"calls": calls, "threads": 1, "budget_s": 0.0, **orders}
        products.main([json.dumps(orders)], said.append)
    finally:
        torch.set_num_threads(threads)
    assert said.pop() == {"done": True}
    return said


def test_a_product_is_timed_as_it_is_and_in_bfloat16() -> None:
    (answer,) = answers([ADDMM])
    assert answer["number"] == 0
    assert set(answer["seconds"]) == {"now", "bfloat16"}
    assert all(seconds > 0 for seconds in answer["seconds"].values())


def test_a_convolution_is_timed_with_its_channels_last_too() -> None:
    (answer,) = answers([CONVOLUTION])
    variants = {"now", "bfloat16", "channels-last", "bfloat16-channels-last"}
    assert set(answer["seconds"]) == variants


def test_what_is_bfloat16_already_is_not_converted() -> None:
    dtypes = ["c10::BFloat16" if dtype == "float" else dtype for dtype in ADDMM["dtypes"]]
    (answer,) = answers([{**ADDMM, "dtypes": dtypes}])
    assert set(answer["seconds"]) == {"now"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "aten::no_such_operator"},
        {"shapes": [[8], [4, 16], [17, 8], [], []]},
        {"dtypes": ["float", "TensorList", "float", "Scalar", "Scalar"]},
        {"dtypes": ["float", "long int", "float", "Scalar", "Scalar"]},
        {"values": ["", "", "", "open('/')", "1"]},
    ],
)
def test_what_cannot_be_made_again_costs_only_itself(wrong: dict[str, Any]) -> None:
    first, second = answers([{**ADDMM, **wrong}, ADDMM])
    assert first["note"]
    assert "seconds" not in first
    assert second["seconds"]


def test_the_convolution_is_the_recorded_one() -> None:
    actions = products.variants(torch, CONVOLUTION)
    assert actions["now"]().shape == (2, 8, 4, 4), "stride 2, padding 1, two groups"
    assert actions["now"]().dtype == torch.float32
    half = actions["bfloat16-channels-last"]()
    assert half.dtype == torch.bfloat16
    assert half.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_everything_that_a_trace_records_of_a_training_can_be_made_again() -> None:
    """The names and words are those of the torch that is installed."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, groups=1),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(8, 4, 3, stride=2),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(5),
    )
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        model(torch.randn(2, 3, 8, 8)).sum().backward()
    names = ("mkldnn_convolution", "convolution_backward", "addmm", "mm")
    events = [event for event in recorded.events() if event.name in {f"aten::{n}" for n in names}]
    calls = [
        {
            "name": event.name,
            "shapes": event.input_shapes,
            "dtypes": ["float" if shape else "" for shape in event.input_shapes],
            "values": [
                "" if value is None or isinstance(value, torch.Tensor) else str(value)
                for value in event.concrete_inputs
            ],
            "backward": "backward" in event.name,
            "share": 0.1,
        }
        for event in events
    ]
    said = answers(calls)
    assert len(said) >= 5
    assert [answer for answer in said if "note" in answer] == []


def test_a_product_that_would_fill_the_memory_is_not_made_again() -> None:
    (answer,) = answers([{**ADDMM, "shapes": [[8], [1 << 20, 1 << 20], [1 << 20, 8], [], []]}])
    assert answer["note"] == "inputs too large to make again"
