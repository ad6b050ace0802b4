"""Which calls belong to training: of trained models, and of frozen ones that pass gradients on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flatout_agent.watch.training_calls import is_of_training

PLAIN = torch.randn(2, 4)
COMPUTED = torch.randn(2, 4, requires_grad=True) * 2


def model(frozen: bool, training: bool) -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(not frozen).train(training)


@pytest.mark.parametrize(
    ("frozen", "training", "batch", "known", "expected"),
    [
        (False, True, PLAIN, False, True),
        (False, False, COMPUTED, False, False),
        (True, True, PLAIN, False, False),
        (True, True, COMPUTED, False, True),
        (True, False, COMPUTED, False, True),
        (True, False, PLAIN, True, False),
        (True, True, PLAIN, True, True),
    ],
)
def test_calls(
    frozen: bool, training: bool, batch: torch.Tensor, known: bool, expected: bool
) -> None:
    called = model(frozen, training)
    assert is_of_training(called, (batch,), {}, known) is expected
    assert is_of_training(called, (), {"batch": [batch]}, known) is expected
    with torch.no_grad():
        assert not is_of_training(called, (batch,), {}, known)


def test_a_loss_is_no_model() -> None:
    assert not is_of_training(nn.MSELoss(), (COMPUTED, PLAIN), {}, known=False)
