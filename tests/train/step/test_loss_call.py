from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flatout_train.errors import UsageError
from flatout_train.step import loss_call


class Output(NamedTuple):
    loss: Tensor | None


class HasLoss(nn.Module):
    def forward(self, input: Tensor, labels: Tensor | None = None) -> Output:
        return Output(None if labels is None else (input - labels).square().mean())


def of_model(model: nn.Module, batch: Any, *, scale: float = 1.0) -> Tensor:
    return model(batch).mean() * scale


def of_pair(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


class Criterion:
    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        return of_model(model, batch)


@pytest.mark.parametrize(
    ("loss_fn", "form"),
    [
        (of_model, True),
        (functools.partial(of_model, scale=2.0), True),
        (Criterion(), True),
        (lambda model, batch: 0, True),
        (of_pair, False),
        (nn.CrossEntropyLoss(), False),
        (F.cross_entropy, False),
        (F.mse_loss, False),
        (torch.nn.functional.l1_loss, False),
        (torch.dist, False),
    ],
)
def test_the_form_is_told_from_the_name_of_the_first_parameter(loss_fn: Any, form: bool) -> None:
    assert loss_call.takes_model(loss_fn) is form


def test_each_form_is_called_as_it_is_written() -> None:
    identity = nn.Identity()
    input, target = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0])
    assert loss_call.build(identity, of_pair)((input, target)).item() == 0.5
    assert loss_call.build(identity, of_pair)([input, target]).item() == 0.5
    assert loss_call.build(identity, of_model)(input).item() == 1.5
    whole = loss_call.build(HasLoss(), None)
    assert whole({"input": input, "labels": target}).item() == 0.5


def test_a_model_without_a_loss_is_told_apart() -> None:
    with pytest.raises(UsageError, match="returned no loss"):
        loss_call.build(HasLoss(), None)({"input": torch.ones(2)})
    with pytest.raises(UsageError, match="a Tensor, which has no loss"):
        loss_call.build(nn.Identity(), None)({"input": torch.ones(2)})
    with pytest.raises(UsageError, match=r"model\(\*\*batch\)"):
        loss_call.build(HasLoss(), None)((torch.ones(2),))
