"""The moving average, kept on the device."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from flatout_train.step.averaging import Average
from train.step.loops import Calls


def network(device: str = "cpu") -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.Linear(3, 2).to(torch.bfloat16)]
    return nn.Sequential(*layers).to(device)


def changed(model: nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(torch.ones_like(tensor))


def test_it_is_torchs_own_to_the_last_bit() -> None:
    model = network()
    mine = Average(model, 0.9)
    own = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    for _ in range(4):
        changed(model)
        mine.update_parameters(model)
        own.update_parameters(model)
    found, expected = mine.state_dict(), own.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("average", [Average, None], ids=["ours", "torch's"])
def test_nothing_goes_from_one_device_to_another(average: Any) -> None:
    """The meta device stands in for the GPU. torch's own is here to show that the test can fail."""
    model = network("meta")
    if average is None:
        made = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    else:
        made = average(model, 0.9)
    made.n_averaged += 1  # the first update copies
    with Calls() as calls:
        made.update_parameters(model)
    assert ("aten::_to_copy" in calls.names) == (average is None)
    if average is not None:
        assert calls.names.count("aten::_foreach_lerp_.Scalar") == 2, "one for each dtype"
        assert calls.names.count("aten::_foreach_copy_") == 2
        assert "aten::copy_" not in calls.names


def test_the_counter_is_on_the_host_whatever_the_default_device_is() -> None:
    """On the device, each update would wait for it. The meta device stands in for the GPU."""
    model = network()
    with torch.device("meta"):
        average = Average(model, 0.9)
        average.update_parameters(model)
    assert average.n_averaged.device.type == "cpu"
    assert int(average.n_averaged) == 1


def same_tensors(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(found, expected) for found, expected in pairs)


def another_parameter(model: nn.Module, average: nn.Module) -> None:
    model[2].weight = nn.Parameter(torch.ones_like(model[2].weight))


def another_module(model: nn.Module, average: nn.Module) -> None:
    model[0] = nn.Conv1d(4, 4, 1)


def other_memory(model: nn.Module, average: nn.Module) -> None:
    model[0].weight.data = torch.ones_like(model[0].weight)
    average.module[0].bias.data = torch.zeros_like(average.module[0].bias)


def another_buffer(model: nn.Module, average: nn.Module) -> None:
    model[1].running_mean = torch.ones(4)


def another_dtype(model: nn.Module, average: nn.Module) -> None:
    model.float()
    average.float()


def another_layout_of_buffers(model: nn.Module, average: nn.Module) -> None:
    for each in (model, average.module):
        each[0].register_buffer("added", torch.full((2,), 7.0 if each is model else 0.0))


def loaded(model: nn.Module, average: nn.Module) -> None:
    state = {name: value.clone() for name, value in average.state_dict().items()}
    average.load_state_dict(state, assign=True)


@pytest.mark.parametrize(
    "change",
    [
        another_parameter,
        another_module,
        other_memory,
        another_buffer,
        another_dtype,
        another_layout_of_buffers,
        loaded,
    ],
)
def test_what_was_replaced_is_averaged_from_then_on(change: Callable[..., None]) -> None:
    results = []
    for make in (
        lambda model: Average(model, 0.9),
        lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),  # type: ignore[no-untyped-call]
    ):
        model = network()
        average = make(model)
        for step in range(4):
            changed(model)
            average.update_parameters(model)
            if step == 1:
                torch.manual_seed(3)
                change(model, average)
        results.append(average)
    assert same_tensors(*results)


def test_an_average_of_another_model_is_of_that_one() -> None:
    one, other = network(), network()
    average = Average(one, 0.9)
    average.update_parameters(one)
    average.update_parameters(one)
    changed(other)
    average.update_parameters(other)
    expected = network()
    changed(expected)
    before = network()
    for found, new, old in zip(
        average.module.parameters(), expected.parameters(), before.parameters(), strict=True
    ):
        torch.testing.assert_close(found, torch.lerp(old, new, 0.1))


def test_a_copy_or_pickle_is_without_the_model_and_goes_on() -> None:
    model = network()
    average = Average(model, 0.9)
    average.update_parameters(model)
    saved = io.BytesIO()
    torch.save(average, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(average), torch.load(saved, weights_only=False)):
        twin.update_parameters(model)
        assert same_tensors(twin.module, average.module)
