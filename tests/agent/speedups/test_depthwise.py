"""Depthwise convolutions under bfloat16 autocast on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

ORIGINALS = functional.conv1d, functional.conv2d, functional.conv3d


class Net(nn.Module):
    """A depthwise convolution behind one that mixes channels; notes what the first computes in."""

    def __init__(self, depthwise: nn.Module) -> None:
        super().__init__()
        self.mix: nn.Module = nn.Conv2d(3, 8, 1)
        if isinstance(depthwise, nn.Conv1d):
            self.mix = nn.Conv1d(3, 8, 1)
        self.depthwise = depthwise
        self.given: Tensor | None = None
        self.node: Any = None

    def forward(self, x: Tensor) -> Tensor:
        given: Tensor = self.depthwise(self.mix(x))
        self.kind, self.node = given.dtype, given.grad_fn
        return given.flatten(1).mean(1)

    def computed_in(self) -> torch.dtype:
        """The dtype of the convolution's result, before it is cast."""
        node = self.node
        while "Convolution" not in node.name():
            node = node.next_functions[0][0]
        return node._input_metadata[0].dtype  # type: ignore[no-any-return]


def conv(kernel: int, stride: int = 1, **settings: Any) -> nn.Module:
    return nn.Conv2d(8, 8, kernel, stride, padding=kernel // 2, **{"groups": 8, **settings})


X = torch.randn(4, 3, 16, 16)
LAST = X.to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("layer", "x", "dtype"),
    [
        pytest.param(conv(3, 2), X, torch.float32, id="stride"),
        pytest.param(conv(3, 2, bias=False), X, torch.float32, id="no bias"),
        pytest.param(conv(5), LAST, torch.float32, id="large kernel in channels-last"),
        pytest.param(nn.Conv1d(8, 8, 5, 2, groups=8), X[:, :, 0], torch.float32, id="1-d"),
        pytest.param(conv(5), X, torch.bfloat16, id="large kernel"),
        pytest.param(conv(3), LAST, torch.bfloat16, id="small kernel"),
        pytest.param(conv(3, 2, groups=4), X, torch.float32, id="groups of two"),
        pytest.param(conv(3, 2, groups=2), X, torch.bfloat16, id="groups of four"),
        pytest.param(conv(3, dilation=2), LAST, torch.float32, id="dilation in channels-last"),
        pytest.param(conv(3, 2, groups=1), X, torch.bfloat16, id="dense"),
    ],
)
def test_slow_ones_are_computed_in_float32(
    boosted: Callable[..., Any], layer: nn.Module, x: Tensor, dtype: torch.dtype
) -> None:
    model = Net(layer)
    written = model(x)
    boosted(model)
    found = model(x)
    assert model.computed_in() is dtype
    assert model.kind is torch.bfloat16, "what follows is computed as under autocast alone"
    torch.testing.assert_close(found, written, atol=0.02, rtol=0)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())


def test_elsewhere_all_stays_in_bfloat16(boosted: Callable[..., Any]) -> None:
    model = Net(conv(3, 2))
    boosted(model, "Arm BF16")
    model(X)
    assert model.computed_in() is torch.bfloat16


def test_without_a_gradient_and_outside_autocast_torchs_own_is_called(
    boosted: Callable[..., Any],
) -> None:
    layer = conv(3, 2)
    model = Net(layer)
    boosted(model)
    expected = ORIGINALS[1](X[:, :1].expand(4, 8, 16, 16), layer.weight, layer.bias, 2, 1, 1, 8)
    assert torch.equal(layer(X[:, :1].expand(4, 8, 16, 16)), expected)
    with torch.no_grad():
        found = model(X)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model.mix(X)
            given = ORIGINALS[1](mixed, layer.weight, layer.bias, 2, 1, 1, 8)
    assert torch.equal(found, given.flatten(1).mean(1).float())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_compiled_code_calls_torchs_own(boosted: Callable[..., Any]) -> None:
    boosted(Net(conv(3, 2)))
    layer = conv(3, 2)
    x = torch.randn(2, 8, 16, 16)
    for compiled in (
        torch.compile(layer, backend="eager", fullgraph=True),
        torch.jit.script(layer),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            expected = ORIGINALS[1](x, layer.weight, layer.bias, 2, 1, 1, 8)
            assert torch.equal(compiled(x), expected)
            assert not torch.equal(layer(x), expected), "computed in float32, then rounded"


def test_a_wrong_call_gets_torchs_own_message(boosted: Callable[..., Any]) -> None:
    boosted(Net(conv(3, 2)))
    with pytest.raises(TypeError, match="conv2d"):
        functional.conv2d(X, conv(3).weight, groups=8, strides=2)
