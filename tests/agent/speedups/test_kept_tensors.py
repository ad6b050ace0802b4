"""What models keep in attributes, under the boosts that compute in another type or format."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatout_agent.attach.chain import Depth
from flatout_agent.boosts import channels_last
from flatout_agent.job import Job
from flatout_agent.speedups.precision import AutocastCall
from guarded import Made


class Keeping(nn.Module):
    """Keeps a term of the loss, activations, a constant of its own, and a buffer."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.own = torch.ones(1, dtype=torch.bfloat16)
        self.register_buffer("scale", torch.ones(1, dtype=torch.bfloat16))
        self.hidden: Tensor | None = None
        self.layers: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc(x)
        if self.training:
            self.hidden = hidden
        self.layers = [hidden, torch.relu(hidden)]
        logits: Tensor = self.head(hidden)
        return logits


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.map: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.map = self.conv(x)
        return self.map.mean((1, 2, 3))


def in_bf16(model: nn.Module) -> Any:
    layer = AutocastCall(model, "cpu", torch.bfloat16)
    return Job().wrap_call(model, Depth.PRECISION, layer.layer)


def test_kept_activations_are_float32_and_still_have_their_gradient() -> None:
    model = Keeping()
    in_bf16(model)
    for _ in range(5):
        model(torch.randn(4, 8))
        assert model.hidden is not None
        assert [kept.dtype for kept in (model.hidden, *model.layers)] == 3 * [torch.float32]
    model.hidden.sum().backward()
    assert model.fc.weight.grad is not None


def test_a_list_that_two_modules_share_stays_shared() -> None:
    def shares(model: Any, x: Tensor) -> Tensor:
        model.seen[:] = [model.fc(x)]
        return seen[0]

    seen: list[Tensor] = []
    model = Made(shares, fc=nn.Linear(8, 8), seen=seen)
    in_bf16(model)
    for _ in range(5):
        model(torch.randn(4, 8))
        assert model.seen is seen
        assert seen[0].dtype is torch.float32


def test_what_the_model_itself_has_in_bfloat16_stays() -> None:
    model = Keeping()
    in_bf16(model)
    model(torch.randn(4, 8))
    assert model.own.dtype is model.scale.dtype is torch.bfloat16


def test_attributes_that_are_set_in_training_only_are_seen_after_evaluations() -> None:
    model = Keeping().eval()
    in_bf16(model)
    for _ in range(5):
        model(torch.randn(4, 8))
    assert model.hidden is None
    model.train()
    model(torch.randn(4, 8))
    assert model.hidden is not None
    assert model.hidden.dtype is torch.float32


def test_a_kept_feature_map_can_be_viewed_under_channels_last() -> None:
    model = Convolution()
    applied = channels_last.apply(Job(), model, {})
    for _ in range(5):
        model(torch.randn(4, 3, 8, 8))
        assert model.map is not None
        assert model.map.view(4, -1).shape == (4, 256)
    assert applied.engaged() == (True, "")


def captured(model: nn.Module, layer: nn.Module, **how: bool) -> list[Any]:
    """What hooks of this layer see in five calls, in training and in evaluation."""
    seen: list[Any] = []
    hooks = [
        layer.register_forward_hook(lambda *values: seen.append(values[-1]), **how),
        layer.register_forward_pre_hook(lambda *values: seen.append(values[1][0])),
    ]
    before = [dict(layer._forward_hooks), dict(layer._forward_pre_hooks)]
    for training in (True, False):
        model.train(training)
        for _ in range(5):
            model(torch.randn(4, 3, 8, 8))
            assert [layer._forward_hooks, layer._forward_pre_hooks] == before
    for hook in hooks:
        hook.remove()
    model(torch.randn(4, 3, 8, 8))
    assert len(seen) == 20
    return seen


@pytest.mark.parametrize("with_kwargs", [False, True])
def test_hooks_get_tensors_as_without_the_boost(with_kwargs: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    channels_last.apply(Job(), model, {})
    in_bf16(model)
    for tensor in captured(model, model[1], with_kwargs=with_kwargs):
        assert tensor.dtype is torch.float32
        assert tensor.is_contiguous()


def test_a_loss_of_features_from_a_hook_trains_the_layers_before_it() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    features: list[Tensor] = []
    model[0].register_forward_hook(lambda _, __, output: features.append(output))
    in_bf16(model)
    model(torch.randn(4, 8))
    features[0].square().sum().backward()
    assert model[0].weight.grad is not None


def masks_output(module: nn.Module, inputs: Any, output: Tensor) -> None:
    output[:, :4] = 0.0


def masks_input(module: nn.Module, inputs: Any) -> None:
    inputs[0][:, :4] = 0.0


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("boost", ["bf16", "channels-last"])
def test_what_a_hook_writes_holds(boost: str, before: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    if before:
        model[1].register_forward_pre_hook(masks_input)
    else:
        model[0].register_forward_hook(masks_output)
    x = torch.randn(2, 3, 8, 8)
    written = model(x)
    on(boost, model)
    torch.testing.assert_close(model(x), written, atol=0.03, rtol=0)


def on(boost: str, model: nn.Module) -> Any:
    return in_bf16(model) if boost == "bf16" else channels_last.apply(Job(), model, {})


@pytest.mark.parametrize("boost", ["bf16", "channels-last"])
def test_a_gradient_asked_for_in_a_hook_comes(boost: str) -> None:
    kept: list[Tensor] = []
    scaled: list[bool] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        output.register_hook(lambda gradient: scaled.append(True))
        kept.append(output)

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    model[0].register_forward_hook(keep)
    on(boost, model)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert kept[0].grad is not None
    assert scaled


def test_under_inference_mode() -> None:
    seen: list[Tensor] = []
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).eval()
    model[0].register_forward_hook(lambda *values: seen.append(values[-1]))
    in_bf16(model)
    with torch.inference_mode():
        model(torch.randn(2, 3, 8, 8))
    assert seen[0].dtype is torch.float32


@pytest.mark.parametrize("first", ["bf16", "channels-last"])
def test_boosts_that_come_and_go_at_different_times(first: str) -> None:
    seen: list[Tensor] = []
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    model[0].register_forward_hook(lambda *values: seen.append(values[-1]))
    second = "channels-last" if first == "bf16" else "bf16"
    x = torch.randn(2, 3, 8, 8)
    undo = on(first, model)
    model(x)
    on(second, model)
    model(x)
    (undo if first == "bf16" else undo.undo)()
    model(x)
    assert [(t.dtype, t.is_contiguous()) for t in seen] == 3 * [(torch.float32, True)]


def test_hooks_that_come_late_and_those_of_copies_are_found() -> None:
    layer = nn.Linear(8, 8)
    seen: list[Tensor] = []
    layer.register_forward_hook(lambda *values: seen.append(values[-1]))
    model = nn.Sequential(layer, copy.deepcopy(layer))
    in_bf16(model)
    for _ in range(8):
        model(torch.randn(2, 8))
    model[0].register_forward_pre_hook(lambda *values: seen.append(values[1][0]))
    model[1].register_forward_pre_hook(lambda *values: seen.append(values[1][0]))
    model(torch.randn(2, 8))
    assert len(seen) == 16 + 4
    assert {tensor.dtype for tensor in seen} == {torch.float32}
