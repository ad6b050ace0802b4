from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.api.step.gradients import Gradients


def of(*parameters: torch.Tensor, **options: Any) -> Gradients:
    model = nn.ParameterList(parameters)
    return Gradients(model, torch.optim.SGD(model.parameters(), lr=0.1))


def filled(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Gradients:
    gradients = of(*(nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes))
    for parameter in gradients.parameters:
        parameter.grad = torch.randn_like(parameter)
    return gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_norm_and_scale(dtype: torch.dtype) -> None:
    gradients = filled((3, 4), (5,), (), dtype=dtype)
    grads = gradients.present()
    norm, parts = gradients.norm(grads)
    assert torch.equal(norm, torch.nn.utils.get_total_norm(grads))
    assert gradients.plain == (dtype != torch.complex64)
    assert (parts is not None) == gradients.plain
    before = [grad.clone() for grad in grads]
    gradients.scale(grads, 0.5)
    gradients.scale(grads, torch.tensor(0.5))
    assert all(torch.equal(grad, old * 0.25) for grad, old in zip(grads, before, strict=True))


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


def test_kinds_that_torchs_grouped_functions_do_not_take_at_once() -> None:
    gradients = of(nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2).double()))
    assert not gradients.plain
    assert gradients.finite_when_scaled(None)
    assert gradients.norm([])[0].item() == 0.0
    for parameter in gradients.parameters:
        parameter.grad = torch.ones_like(parameter)
    assert gradients.finite_when_scaled(0.5)
    assert gradients.norm(gradients.present())[0].item() == pytest.approx(math.sqrt(5) / 2)


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
