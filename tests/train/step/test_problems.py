"""Each mistake gets an error that names the thing and the cure."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flatout
from flatout_train.errors import UsageError

PLAIN: dict[str, Any] = {"precision": "fp32", "compile": False}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def pair(rows: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4), torch.randint(0, 3, (rows,))


def step(model: nn.Module | None = None, loss_fn: Any = F.cross_entropy, **options: Any) -> Any:
    model = network() if model is None else model
    return flatout.train_step(model, loss_fn, sgd(model), **{**PLAIN, **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accumulate": 0}, "accumulate=0"),
        ({"accumulate": True}, "accumulate=True"),
        ({"weigh": "bytes"}, "weigh='bytes' .* \"samples\""),
        ({"clip_norm": 0}, "clip_norm=0"),
        ({"clip_norm": float("nan")}, "clip_norm=nan"),
        ({"clip_norm": "1"}, "clip_norm='1'"),
        ({"ema": 0}, "ema=0"),
        ({"ema": 1.0}, "ema=1.0"),
        ({"nonfinite": "ignore"}, "nonfinite='ignore' .* \"stop\""),
        ({"graph": "yes"}, "graph='yes'"),
        ({"recompute": "all"}, "recompute='all'"),
        ({"precision": "int8"}, "precision='int8' .* one of auto, bf16"),
        ({"layout": "nhwc"}, "layout='nhwc' .* one of auto"),
        ({"compile": "fast"}, "compile='fast' .* use auto, blocks, whole"),
    ],
)
def test_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        step(**options)


def test_kinds_of_arguments() -> None:
    model = network()
    with pytest.raises(UsageError, match="model is a function"):
        flatout.train_step(lambda x: x, None, sgd(model))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="loss_fn is a float"):
        flatout.train_step(model, 1.0, sgd(model))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="optimizer is a list"):
        flatout.train_step(model, None, [])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="LBFGS"):
        flatout.train_step(model, None, torch.optim.LBFGS(model.parameters()))


def test_schedulers() -> None:
    model = network()
    optimizer = sgd(model)
    schedulers = torch.optim.lr_scheduler
    for scheduler, said in (
        (schedulers.ReduceLROnPlateau(optimizer), "where you validate"),
        (schedulers.StepLR(sgd(model), 1), "another optimizer"),
        (3, "it has no step"),
    ):
        with pytest.raises(UsageError, match=said):
            flatout.train_step(model, None, optimizer, scheduler=scheduler)


def test_parameters_that_the_optimizer_lacks() -> None:
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"lacks 2 of .* 2\.weight \[3, 6\], 2\.bias \[3\]"):
        flatout.train_step(model, F.cross_entropy, optimizer)
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    flatout.train_step(model, F.cross_entropy, optimizer, **PLAIN)(pair())


def test_an_optimizer_of_another_model() -> None:
    model = network()
    with pytest.raises(UsageError, match=r"none of .* created for another model, or"):
        flatout.train_step(model, F.cross_entropy, sgd(nn.Linear(2, 2)))
    with pytest.raises(UsageError, match="or before this one was moved"):
        flatout.train_step(model, F.cross_entropy, sgd(copy.deepcopy(model)))


def test_parameters_of_the_loss_belong_to_the_optimizer() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(output * self.scale, target)

    model, loss_fn = network(), Scaled()
    optimizer = torch.optim.SGD([*model.parameters(), *loss_fn.parameters()], lr=0.1)
    flatout.train_step(model, loss_fn, optimizer, **PLAIN)(pair())
    assert loss_fn.scale.item() != 1.0


def test_nothing_to_train() -> None:
    model = network().requires_grad_(False)
    with pytest.raises(UsageError, match="no trainable parameters"):
        step(model)
    with pytest.raises(UsageError, match="no parameters"):
        flatout.train_step(nn.Tanh(), F.cross_entropy, sgd(model))


@pytest.mark.parametrize(
    ("loss_fn", "said"),
    [
        (lambda output, target: output.sum(1), r"shape \[5\]: it must be 0-d"),
        (lambda output, target: output.sum().reshape(1), r"shape \[1\]"),
        (lambda output, target: output.sum().item(), "a float"),
        (lambda output, target: output.sum().detach(), "no gradient"),
        (lambda output, target: output.sum().long(), "int64"),
        (
            lambda output, target: torch.ones((), requires_grad=True) * 2,
            "no parameter of the optimizer got a gradient",
        ),
    ],
)
def test_losses(loss_fn: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        step(loss_fn=loss_fn)(pair())


@pytest.mark.parametrize("loss_fn", [lambda output: output.sum(), lambda model: 0, network()])
def test_a_loss_of_one_argument(loss_fn: Any) -> None:
    with pytest.raises(UsageError, match="does not take two arguments"):
        step(loss_fn=loss_fn)


def test_a_model_without_values_is_brought_to_a_device_that_is_there() -> None:
    model = nn.Linear(2, 2, device="meta")
    there = "cuda" if torch.cuda.is_available() else "cpu"
    with pytest.raises(UsageError, match=f'to_empty\\(device="{there}"\\)'):
        flatout.train_step(model, F.cross_entropy, sgd(model))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((torch.randn(0, 4), torch.zeros(0).long()), r"batch is empty: batch\[0\] .*\[0, 4\]"),
        ({"x": pair()[0], "y": pair()[1]}, "a dict with 'x', 'y'"),
        (pair()[0], r"one tensor of shape \[5, 4\]"),
        ((*pair(), 1), "a tuple of 3"),
    ],
)
def test_batches(batch: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        step()(batch)


@pytest.mark.parametrize(
    ("batch", "facts"),
    [
        ((torch.randn(5, 4).double(), pair()[1]), "batch[0] [5, 4] float64 on cpu"),
        ((pair()[0], torch.zeros(5, dtype=torch.int32)), "batch[1] [5] int32 on cpu"),
        ((torch.randn(5, 4, device="meta"), pair()[1]), "batch[0] [5, 4] float32 on meta"),
        ((torch.randn(5, 7), pair()[1]), "batch[0] [5, 7] float32 on cpu"),
        ((pair()[0], torch.full((5,), 9)), "batch[1] [5] int64 on cpu"),
    ],
)
@pytest.mark.parametrize("calls", [0, 1])
def test_an_error_of_torch_has_the_facts_of_batch_and_model(
    batch: Any, calls: int, facts: str
) -> None:
    one = step()
    for _ in range(calls):
        one(pair())
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        one(batch)
    (note,) = caught.value.__notes__
    assert facts in note
    assert note.endswith("; the model's parameters are float32 on cpu")


def test_an_error_in_the_backward_pass_has_them_too_and_a_large_batch_is_cut_short() -> None:
    calls = []

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        loss = model(batch[0]).square()
        return loss.mean() if len(calls) == 1 else loss.mean().detach()

    one = step(loss_fn=loss_fn)
    one([torch.ones(2, 4)] * 20)
    with pytest.raises(RuntimeError, match="does not require grad") as caught:
        one([torch.ones(2, 4)] * 20)
    assert "batch[7] [2, 4] float32 on cpu and 12 more;" in caught.value.__notes__[0]


def test_an_empty_batch_later_is_named() -> None:
    one = step()
    one(pair())
    with pytest.raises(UsageError, match="batch is empty"):
        one((torch.randn(0, 4), torch.zeros(0).long()))


def test_evaluation_mode_is_told_once() -> None:
    model = network().eval()
    one = step(model)
    with pytest.warns(UserWarning, match=r"evaluation mode.*model\.train\(\)"):
        one(pair())
    one(pair())


def test_a_step_that_cannot_be_made_leaves_model_and_optimizer_as_they_were() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
    classes = [type(block) for block in model]
    optimizer = torch.optim.AdamW(model.parameters())
    hooks = len(optimizer._optimizer_step_pre_hooks)
    with pytest.raises(UsageError, match="compile='no such'"):
        flatout.train_step(model, F.mse_loss, optimizer, recompute=True, compile="no such")
    assert [type(block) for block in model] == classes
    assert len(optimizer._optimizer_step_pre_hooks) == hooks
    assert not any(group["fused"] for group in optimizer.param_groups)
