"""Models that run with constants in place of their random numbers, as they are proved."""

from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.ranks.quiet import LoudOperator, Quiet

WEIGHTS = [weight.to("meta") for weight in nn.LSTM(4, 8, 2).parameters()]


def on_cudnn(dropout: float, train: bool) -> torch.Tensor:
    """What nn.LSTM calls on an NVIDIA GPU."""
    x, state = torch.empty(5, 2, 4, device="meta"), torch.empty(2, 2, 8, device="meta")
    mode = 2
    results: Any = torch.ops.aten._cudnn_rnn(
        x, WEIGHTS, 4, None, state, state, mode, 8, 0, 2, False, dropout, train, False, [], None
    )
    output: torch.Tensor = results[0]
    return output


@pytest.mark.parametrize(("dropout", "train"), [(0.0, True), (0.0, False), (0.5, False)])
def test_a_recurrent_layer_without_dropout_draws_no_numbers(dropout: float, train: bool) -> None:
    with Quiet() as quiet:
        assert on_cudnn(dropout, train).shape == (5, 2, 8)
    assert not quiet.random


def test_a_recurrent_layer_with_dropout_draws_them_where_no_generator_reaches() -> None:
    with pytest.raises(LoudOperator, match="_cudnn_rnn"), Quiet():
        on_cudnn(0.5, True)


@pytest.mark.gpu
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_runs_as_without_the_mode_on_the_gpu(layer: type[nn.Module]) -> None:
    model, x = layer(4, 8).cuda(), torch.randn(5, 2, 4, device="cuda")
    with Quiet() as quiet:
        output = model(x)[0]
    torch.testing.assert_close(output, model(x)[0])
    assert not quiet.random
