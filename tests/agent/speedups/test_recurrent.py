"""Recurrent layers of few units under bfloat16 autocast on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from flatout_agent.boosts import packed_sequences
from flatout_agent.job import Job

ROWS, STEPS, WIDE = 4, 3, 1280


class Layer(nn.Module):
    """A recurrent layer over rows, packed or not, or a cell called in a loop."""

    def __init__(self, layer: Any, packed: bool = False) -> None:
        super().__init__()
        self.layer, self.packed = layer, packed
        self.product: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.RNNCellBase):
            state: Any = None
            for step in x.unbind(1):
                state = self.layer(step, state)
            output = state[0] if isinstance(state, tuple) else state
        elif self.packed:
            given: PackedSequence
            packed = pack_padded_sequence(x, torch.tensor([3, 3, 2, 1]), batch_first=True)
            given, _ = self.layer(packed)
            output = given.data
        else:
            output, _ = self.layer(x)
        self.product = _product_in(output)
        result: Tensor = output.float()
        return result


def _product_in(output: Tensor) -> torch.dtype | None:
    """The dtype of the nearest product behind it."""
    nodes = [output.grad_fn] if output.grad_fn is not None else []
    while nodes:
        node: Any = nodes.pop(0)
        if any(name in node.name() for name in ("Addmm", "MmBackward", "Linear")):
            return node._input_metadata[0].dtype  # type: ignore[no-any-return]
        nodes += [following for following, _ in node.next_functions if following is not None]
    return None


def few(cell: Callable[..., Any], **settings: Any) -> Any:
    return cell(16, 16, **settings)


def many(cell: Callable[..., Any], **settings: Any) -> Any:
    return cell(16, WIDE, **settings)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "cell", [nn.GRU, nn.RNN, lambda *sizes, **how: nn.RNN(*sizes, nonlinearity="relu", **how)]
)
def test_layers_of_few_units_are_computed_in_float32(
    boosted: Callable[..., Any], cell: Callable[..., Any], packed: bool
) -> None:
    x = torch.randn(ROWS, STEPS, 16)
    model = Layer(few(cell, batch_first=True), packed)
    written = model(x)
    boosted(model)
    assert torch.equal(model(x), written)
    assert model.product is torch.float32
    wide = Layer(many(cell, batch_first=True), packed)
    boosted(wide)
    wide(x)
    assert wide.product is torch.bfloat16


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_cells_of_few_units_are_computed_in_float32(
    boosted: Callable[..., Any], cell: Callable[..., Any]
) -> None:
    x = torch.randn(ROWS, STEPS, 16)
    model = Layer(few(cell))
    written = model(x)
    boosted(model)
    found = model(x)
    assert torch.equal(found, written)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())
    wide = Layer(many(cell))
    boosted(wide)
    wide(x)
    assert wide.product is torch.bfloat16


def test_what_comes_in_16_bits_is_taken_too(boosted: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(16, 16), Layer(few(nn.GRU, batch_first=True)))
    boosted(model)
    assert model(torch.randn(ROWS, STEPS, 16)).dtype is torch.float32
    assert model[1].product is torch.float32


def test_elsewhere_and_without_a_gradient_all_stays_in_bfloat16(
    boosted: Callable[..., Any],
) -> None:
    x = torch.randn(ROWS, STEPS, 16)
    model = Layer(few(nn.GRU, batch_first=True))
    undo = boosted(model).undo
    with torch.no_grad():
        found = model(x)
        undo()
        with torch.autocast("cpu", torch.bfloat16):
            expected = model(x)
    assert torch.equal(found, expected)
    arm = Layer(few(nn.GRU, batch_first=True))
    boosted(arm, "Arm BF16")
    arm(x)
    assert arm.product is torch.bfloat16


@pytest.mark.parametrize("first", ["bf16-autocast", "packed-sequences"])
def test_packed_sequences_are_padded_whichever_boost_came_first(
    boosted: Callable[..., Any], first: str
) -> None:
    x = torch.randn(2, 70, 16)
    packed = pack_padded_sequence(x, torch.tensor([70, 60]), batch_first=True)
    model = few(nn.GRU, batch_first=True)
    written = model(packed)[0].data
    if first == "bf16-autocast":
        boosted(model)
    padded = packed_sequences.apply(Job(), model, {})
    if first == "packed-sequences":
        boosted(model)
    found = model(packed)[0].data
    engaged = padded.engaged() if padded.engaged is not None else None
    padded.undo()
    assert engaged is not None
    assert engaged[0], "it took the call"
    torch.testing.assert_close(found, written)
    assert found.dtype is torch.float32


def test_a_wrong_call_gets_torchs_own_message(boosted: Callable[..., Any]) -> None:
    boosted(Layer(few(nn.GRU)))
    gru: Callable[..., Any] = torch._VF.gru
    with pytest.raises(TypeError, match="gru"):
        gru(torch.randn(2, 2))
