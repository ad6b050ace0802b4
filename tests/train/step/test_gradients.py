from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from flatout_train.step.gradients import Gradients
from train.step.loops import Calls


def of(*parameters: torch.Tensor, **options: Any) -> Gradients:
    model = nn.ParameterList(parameters)
    return Gradients(model, torch.optim.SGD(model.parameters(), lr=0.1))


def filled(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Gradients:
    gradients = of(*(nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes))
    for parameter in gradients.parameters:
        parameter.grad = torch.randn_like(parameter)
    return gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [None, 1.0, 1 / 3, torch.tensor(1 / 3)])
@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_finite_when_scaled(dtype: torch.dtype, factor: Any, bad: float | None) -> None:
    gradients = filled((3, 4), (5,), dtype=dtype)
    grads = gradients.present()
    before = [grad.clone() for grad in grads]
    if bad is not None:
        grads[1][2] = bad
    assert gradients.finite_when_scaled(factor) == (bad is None)
    expected = before[0] * (1.0 if factor is None else factor)
    torch.testing.assert_close(
        grads[0], expected, rtol=2e-7 if dtype != torch.float64 else 1e-15, atol=0
    )
    if bad is not None:
        assert gradients.nonfinite() == [gradients.parameters[1]]
        assert gradients.named_by(gradients.norm(grads)[1]) == [gradients.parameters[1]]
        grads[1][2] = 0.0
        assert gradients.finite_when_scaled(None)


class Shard(torch.Tensor):
    """What lies here of a tensor that is spread over the ranks, as torch's DTensor gives it."""

    def to_local(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


@pytest.fixture
def factors(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.dtype, torch.dtype]]:
    """The dtype of gradients and of the factor, of each launch: torch's fast path wants one."""
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    own: Any = torch._foreach_mul_

    def watched(grads: Any, factor: Any) -> Any:
        assert len({(grad.dtype, grad.device) for grad in grads}) == 1
        seen.append((grads[0].dtype, factor.dtype))
        assert factor.device == grads[0].device
        return own(grads, factor)

    monkeypatch.setattr(torch, "_foreach_mul_", watched)
    return seen


@pytest.mark.parametrize("sharded", [False, True])
def test_each_kind_is_scaled_in_one_launch(sharded: bool) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16)
    gradients = of(*(nn.Parameter(torch.zeros(3, dtype=dtype)) for dtype in dtypes))
    assert not gradients.plain
    grads = [torch.ones_like(each) for each in gradients.parameters]
    given = [grad.as_subclass(Shard) for grad in grads] if sharded else grads
    with Calls() as calls:
        gradients.scale(given, torch.tensor(0.5, dtype=torch.float64))
    assert calls.names.count("aten::_foreach_mul_.Tensor") == 2
    assert "aten::mul_.Tensor" not in calls.names
    assert all(bool((grad == 0.5).all()) for grad in grads)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_factor_of_the_gradients_own_dtype(
    dtype: torch.dtype, device: str, factors: list[Any]
) -> None:
    """With any other, torch multiplies tensor by tensor. The meta device stands in for the GPU."""
    gradients = of(*(nn.Parameter(torch.zeros(3, dtype=dtype, device=device)) for _ in range(3)))
    assert gradients.plain
    grads = [torch.ones_like(each) for each in gradients.parameters]
    gradients.scale(grads, torch.tensor(1 / 3, dtype=torch.float64))
    whole = torch.float32 if (dtype, device) == (torch.bfloat16, "cpu") else dtype
    assert factors == [(dtype, whole)]


def test_the_flag_of_nonfinite_gradients_is_beside_them_whatever_the_default_device_is() -> None:
    gradients = filled((3,), (2,))
    with torch.device("meta"):
        assert gradients.finite_when_scaled(0.5)


def test_an_optimizers_own_zero_grad_is_called() -> None:
    class Own(torch.optim.SGD):
        cleared = 0

        def zero_grad(self, set_to_none: bool = True) -> None:
            self.cleared += 1
            super().zero_grad(set_to_none)

    model = nn.Linear(2, 2)
    optimizer = Own(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    Gradients(model, optimizer).clear()
    assert optimizer.cleared == 1
    assert model.weight.grad is None


def test_the_norm_of_no_gradients_is_where_the_model_is() -> None:
    """Beside a loss on a GPU, torch's own zero on the CPU could not be stacked."""
    model = nn.Linear(2, 2, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norm, parts = Gradients(model, optimizer).norm([])
    assert (norm.device.type, parts) == ("meta", None)
