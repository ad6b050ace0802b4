"""What a step's recording relies on, seen when it changes: memory, modules, rates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatout_train.step.graph.placement import Placement
from flatout_train.step.graph.rates import Rates
from train.step.loops import Calls

CPU = torch.device("cpu")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.ones(3))
        self.register_buffer("later", None)


def made() -> tuple[Any, Placement]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, Placement(model, optimizer)


def renewed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone())


def swapped(model: Any) -> None:
    weights = model.inner._parameters
    weights["weight"], weights["bias"] = weights["bias"], weights["weight"]


CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "an equal parameter": (
        "inner.weight",
        lambda m: setattr(m.inner, "weight", renewed(m.inner.weight)),
    ),
    "an equal parameter of one element": (
        "model.scale",
        lambda m: setattr(m, "scale", renewed(m.scale)),
    ),
    "an equal counter": (
        "norm.num_batches_tracked",
        lambda m: setattr(m.norm, "num_batches_tracked", m.norm.num_batches_tracked.clone()),
    ),
    "another shape": ("model.mask", lambda m: setattr(m, "mask", torch.ones(5))),
    "no buffer": ("model.mask", lambda m: setattr(m, "mask", None)),
    "a buffer of None": ("model.later", lambda m: setattr(m, "later", torch.ones(1))),
    "another parameter": (
        "model.added",
        lambda m: m.register_parameter("added", nn.Parameter(torch.ones(1))),
    ),
    "another module": ("model.inner", lambda m: setattr(m, "inner", copy.deepcopy(m.inner))),
    "memory": ("inner.bias", lambda m: setattr(m.inner.bias, "data", m.inner.bias.data.clone())),
    "two that change places": ("inner.weight", swapped),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_moved_is_noticed_and_named(what: str) -> None:
    name, change = CHANGES[what]
    model, placement = made()
    assert placement.moved() is None
    model.inner.weight.data.add_(1)
    assert placement.moved() is None, "written into"
    change(model)
    assert placement.moved() == name


class Eager(nn.Linear):
    """A module whose mode is not where torch keeps it."""

    mode = True

    @property
    def training(self) -> bool:
        return self.mode

    @training.setter
    def training(self, mode: bool) -> None:
        self.mode = mode


def test_flags_are_one_object_until_one_changes() -> None:
    model, _ = made()
    model.own = Eager(2, 2)
    placement = Placement(model, torch.optim.SGD(model.parameters()))
    seen = [placement.flags()]
    assert placement.flags() is seen[0]
    for change in (
        lambda: model.norm.eval(),
        lambda: model.inner.weight.requires_grad_(False),
        lambda: model.own.eval(),
    ):
        change()
        seen.append(placement.flags())
    assert len(set(seen)) == 4
    model.train()
    model.inner.weight.requires_grad_(True)
    assert placement.flags() == seen[0]


def rates(*groups: dict[str, Any], **options: Any) -> tuple[Any, Rates]:
    model = nn.Linear(2, 2)
    parts = [
        {"params": [parameter], **group}
        for parameter, group in zip(model.parameters(), groups or ({}, {}), strict=True)
    ]
    optimizer = torch.optim.Adam(parts, **{"lr": 0.5, "fused": True, **options})
    made = Rates(optimizer, CPU)
    made.prepare()
    return optimizer.param_groups, made


def test_the_key_is_one_object_while_nothing_is_written_but_rates() -> None:
    groups, made = rates()
    key = made.key()
    groups[0]["lr"] = 0.25
    assert made.key() is key
    groups[1]["weight_decay"] = 0.5
    assert made.key() != key
    groups[1]["weight_decay"] = 0
    assert made.key() == key
    groups[0]["betas"] = (0.5, 0.5)
    assert made.key() != key


def test_what_is_written_into_is_looked_at_each_time() -> None:
    groups, made = rates({"betas": [0.5, 0.5]}, {})
    key = made.key()
    groups[0]["betas"][0] = 0.75
    assert made.key() != key


def test_an_entry_that_is_added_or_renamed_is_another_key() -> None:
    groups, made = rates({"name": "a"}, {"name": "b"})
    keys = [made.key()]
    groups[0]["label"] = groups[0].pop("name")
    keys.append(made.key())
    groups[1]["added"] = 1
    keys.append(made.key())
    assert len(set(keys)) == 3


def test_rates_go_to_the_device_in_one_launch_and_only_when_they_change() -> None:
    groups, made = rates({"lr": 0.5}, {"lr": 0.25})
    for _ in range(2):
        with Calls() as calls, made.as_tensors():
            assert [float(group["lr"]) for group in groups] == [0.5, 0.25]
        assert [group["lr"] for group in groups] == [0.5, 0.25]
    launches = {"aten::copy_", "aten::fill_.Scalar", "aten::_to_copy"}
    assert not launches & set(calls.names)
    groups[0]["lr"], groups[1]["lr"] = 0.125, 0.0625
    with Calls() as calls:
        made.send()
    assert [name for name in calls.names if name in launches] == ["aten::copy_"]
    with made.as_tensors():
        values: list[Tensor] = [group["lr"] for group in groups]
    assert [float(value) for value in values] == [0.125, 0.0625]
