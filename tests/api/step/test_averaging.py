"""The moving average, kept on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from flatout_agent.api.step.averaging import Average


class Calls(TorchDispatchMode):
    """The operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


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
