"""What a forward pass copies from the host. The device is `meta`, which has no values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flatout_agent.speedups.graphs.host_values import CHANGES, TRAINED, HostValues
from flatout_agent.speedups.graphs.recordings import NotRecordable
from guarded import Made

META = torch.device("meta")
THERE = torch.empty(3, device=META)


def put(value: Any) -> torch.Tensor:
    place = torch.empty(3, device=META)
    place[0] = value
    return place


FORMS: dict[str, Callable[[float], torch.Tensor]] = {
    "tensor": lambda number: torch.tensor(number, device=META, dtype=torch.float64),
    "as_tensor": lambda number: torch.as_tensor([number], device="meta"),
    "new_tensor": lambda number: THERE.new_tensor(number),
    "to": lambda number: torch.full((2,), number).to(META),
    "to, with a type": lambda number: torch.full((2,), number).to("meta", torch.float64),
    "to another": lambda number: torch.full((3,), number).to(THERE),
    "copy_": lambda number: torch.empty(3, device=META).copy_(torch.full((3,), number)),
    "setitem": lambda number: put(torch.tensor(number)),
}


def passes(*calls: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    values = HostValues(META)
    results = []
    for call in calls:
        with values:
            results.append(call())
    return results


@pytest.mark.parametrize("form", FORMS)
def test_what_is_the_same_each_time_is_kept(form: str) -> None:
    make = FORMS[form]
    expected = make(2.0)
    for result in passes(*[lambda: make(2.0)] * 3):
        assert (result.device, result.dtype, result.shape) == (
            expected.device, expected.dtype, expected.shape)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_what_changes_is_refused(form: str) -> None:
    make, numbers = FORMS[form], iter((2.0, 2.0, 3.0))
    with pytest.raises(NotRecordable, match=CHANGES):
        passes(*[lambda: make(next(numbers))] * 3)


def test_a_value_more_or_less_is_refused() -> None:
    make = FORMS["tensor"]
    with pytest.raises(NotRecordable, match=CHANGES):
        passes(lambda: make(1.0), lambda: make(1.0) + make(2.0))
    with pytest.raises(NotRecordable, match=CHANGES):
        passes(lambda: make(1.0) + make(2.0), lambda: make(1.0))


def test_the_programs_error_is_not_hidden() -> None:
    def fails() -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        passes(lambda: FORMS["tensor"](1.0), fails)


def test_what_stays_where_it_is_is_left_alone() -> None:
    numbers = iter((1.0, 2.0))

    def on_the_host() -> torch.Tensor:
        number = next(numbers)
        torch.tensor(number)
        torch.full((2,), number).to(torch.float64)
        torch.as_tensor(THERE, device=META)
        return THERE.to(torch.float64)

    assert [result.dtype for result in passes(on_the_host, on_the_host)] == [torch.float64] * 2


def test_the_default_device_counts_too() -> None:
    torch.set_default_device(META)
    try:
        results = passes(*[lambda: torch.tensor(2.0)] * 2)
        numbers = iter((2.0, 3.0))
        with pytest.raises(NotRecordable, match=CHANGES):
            passes(*[lambda: torch.tensor(next(numbers))] * 2)
    finally:
        torch.set_default_device(None)
    assert [result.device for result in results] == [META] * 2


def test_a_weight_on_the_host_would_no_longer_train() -> None:
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(NotRecordable, match=TRAINED):
        passes(lambda: weight.to(META))


@pytest.mark.gpu
def test_a_mask_made_on_the_host_is_recorded_on_a_gpu() -> None:
    from flatout_agent.boosts import cuda_graphs
    from flatout_agent.job import Job

    def masked(model: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, model.layer(x), torch.tensor(0.0, device=x.device))

    model = Made(masked, layer=torch.nn.Linear(8, 8)).cuda()
    applied = cuda_graphs.apply(Job(), model, {})
    for _ in range(6):
        x = torch.randn(4, 8, device="cuda")
        loss = model(x).square().sum()
        loss.backward()
        expected = torch.where(x > 0, model.layer(x), 0.0).square().sum()
        torch.testing.assert_close(loss, expected)
    assert applied.engaged() == (True, "recorded")
