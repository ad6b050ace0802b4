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
        ({"accumulate": 2.0}, "accumulate=2.0"),
        ({"weigh": "bytes"}, "weigh='bytes' .* \"samples\""),
        ({"clip_norm": 0}, "clip_norm=0"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0"),
        ({"clip_norm": float("nan")}, "clip_norm=nan"),
        ({"clip_norm": "1"}, "clip_norm='1'"),
        ({"ema": 0}, "ema=0"),
        ({"ema": 1.0}, "ema=1.0"),
        ({"ema": 1.5}, "ema=1.5"),
        ({"nonfinite": "ignore"}, "nonfinite='ignore' .* \"stop\""),
        ({"graph": "yes"}, "graph='yes'"),
        ({"recompute": "all"}, "recompute='all'"),
        ({"precision": "int8"}, "precision='int8'"),
        ({"layout": "nhwc"}, "layout='nhwc'"),
        ({"compile": "fast"}, "compile='fast'"),
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
    with pytest.raises(UsageError, match=r"2 parameters .* 2\.weight \[3, 6\], 2\.bias \[3\]"):
        flatout.train_step(model, F.cross_entropy, optimizer)
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    flatout.train_step(model, F.cross_entropy, optimizer, **PLAIN)(pair())


def test_an_optimizer_of_another_model() -> None:
    model = network()
    with pytest.raises(UsageError, match=r"none of .* created for another model\. Create it"):
        flatout.train_step(model, F.cross_entropy, sgd(nn.Linear(2, 2)))
    with pytest.raises(UsageError, match="before the model's tensors were replaced"):
        flatout.train_step(model, F.cross_entropy, sgd(copy.deepcopy(model)))


def test_an_optimizer_made_before_the_model_was_moved() -> None:
    model = network()
    optimizer = sgd(model)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.to("meta")
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    with pytest.raises(UsageError, match="on the meta device"):
        flatout.train_step(model, F.cross_entropy, optimizer)
    model.to_empty(device="cpu")
    stale = torch.optim.SGD([nn.Parameter(each.to("meta")) for each in model.parameters()], lr=0.1)
    with pytest.raises(UsageError, match=r"created before the model was moved.*after model\.to"):
        flatout.train_step(model, F.cross_entropy, stale)


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


def test_a_loss_that_goes_wrong_later() -> None:
    calls = []

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        loss = F.cross_entropy(output, target, reduction="none")
        return loss.mean() if len(calls) == 1 else loss if len(calls) == 2 else loss.mean().detach()

    one = step(loss_fn=loss_fn)
    one(pair())
    with pytest.raises(UsageError, match="not 0-d") as caught:
        one(pair())
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(UsageError, match="no gradient"):
        one(pair())


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((torch.randn(5, 4).double(), pair()[1]), r"batch\[0\] \[5, 4\] is float64, .* float32"),
        ((pair()[0], torch.zeros(5, dtype=torch.int32)), r"batch\[1\] .* int32: class indices"),
        ((pair()[0], torch.zeros(5)), r"batch\[1\] \[5\] is float32: class indices must be int64"),
        ((torch.randn(5, 4, device="meta"), pair()[1]), r"on meta, the model on cpu: .*to_device"),
        ((torch.randn(0, 4), torch.zeros(0).long()), r"batch is empty: batch\[0\] .*\[0, 4\]"),
        ({"x": pair()[0], "y": pair()[1]}, "a dict with 'x', 'y'"),
        (pair()[0], r"one tensor of shape \[5, 4\]"),
        ((torch.randn(5, 7), pair()[1]), r"sizes do not fit: .*\(5x7 and 4x.*batch\[0\] \[5, 7\]"),
        ((pair()[0], pair()[1][:3]), r"sizes do not fit: Expected input batch_size \(5\)"),
        ((*pair(), 1), "a tuple of 3"),
    ],
)
def test_batches(batch: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        step()(batch)


def test_images_as_bytes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(1, 3, 8, 8))
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(UsageError, match=r"batch\[0\] \[2, 3, 8, 8\] is uint8.*float\(\) / 255"):
        step(model)((images, torch.zeros(2).long()))


def test_images_with_a_dimension_too_many() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    batch = torch.zeros(1, 2, 3, 8, 8), torch.zeros(1).long()
    with pytest.raises(UsageError, match=r"sizes do not fit: Expected 3D .*\[1, 2, 3, 8, 8\]"):
        step(model)(batch)


def test_errors_come_on_any_call_with_torchs_own_behind() -> None:
    one = step()
    one(pair())
    with pytest.raises(UsageError, match="float64") as caught:
        one((pair()[0].double(), pair()[1]))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_errors_that_are_not_understood_stay_as_they_are() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        step()((pair()[0], torch.full((5,), 9)))


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


def test_a_failed_start_leaves_the_model_as_it_was() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    hooks = len(optimizer._optimizer_step_pre_hooks)
    with pytest.raises(UsageError, match="compile='fast'"):
        flatout.train_step(model, F.cross_entropy, optimizer, compile="fast")
    assert len(optimizer._optimizer_step_pre_hooks) == hooks
    assert not any(group["fused"] for group in optimizer.param_groups)


@pytest.mark.gpu
def test_model_and_batch_on_different_devices() -> None:
    model = network().cuda()
    with pytest.raises(UsageError, match=r"batch\[0\] \[5, 4\] is on cpu, the model on cuda:0"):
        step(model)(pair())
    input, target = pair()
    with pytest.raises(UsageError, match=r"batch\[1\] \[5\] is on cpu"):
        step(model)((input.cuda(), target))


@pytest.mark.parametrize(
    ("dtype", "model_dtype"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.int64, torch.float32),
    ],
)
def test_an_input_of_another_precision_than_the_model_is_named(
    dtype: torch.dtype, model_dtype: torch.dtype
) -> None:
    model = network().to(model_dtype)
    step = flatout.train_step(model, F.cross_entropy, sgd(model), **PLAIN)
    inputs, targets = pair()
    said = rf"batch\[0\] .* is {str(dtype)[6:]}, .* convert with batch\[0\]\.to\({model_dtype}\)"
    with pytest.raises(UsageError, match=said):
        step((inputs.to(dtype), targets))


def test_a_step_that_cannot_be_made_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
    classes = [type(block) for block in model]
    with pytest.raises(UsageError, match="compile='no such'"):
        flatout.train_step(model, F.mse_loss, sgd(model), recompute=True, compile="no such")
    assert [type(block) for block in model] == classes
