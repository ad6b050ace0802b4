"""The moving average, kept on the device."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from flatout_train.step.averaging import Average
from train.step.loops import Calls, same


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
    assert same(mine.state_dict(), own.state_dict())


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


def test_what_was_replaced_is_averaged_from_then_on() -> None:
    """A parameter, its memory, a module, a buffer: each update looks for its tensors."""
    results = []
    for make in (
        lambda model: Average(model, 0.9),
        lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),  # type: ignore[no-untyped-call]
    ):
        model: Any = network()
        average = make(model)
        for step in range(4):
            changed(model)
            average.update_parameters(model)
            if step == 1:
                torch.manual_seed(3)
                model[2].weight = nn.Parameter(torch.ones_like(model[2].weight))
                model[0] = nn.Conv1d(4, 4, 1)
                model[1].weight.data = torch.ones(4)
                model[1].running_mean = torch.ones(4)
        results.append(average.state_dict())
    assert same(*results)


def test_a_copy_or_pickle_is_without_the_model_and_goes_on() -> None:
    model = network()
    average = Average(model, 0.9)
    average.update_parameters(model)
    saved = io.BytesIO()
    torch.save(average, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(average), torch.load(saved, weights_only=False)):
        twin.update_parameters(model)
        assert same(twin.module.state_dict(), average.module.state_dict())
