"""Probabilities under autocast in float32, where bfloat16 would make 0.9999 a 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flatout_agent.job import Job
from flatout_agent.speedups.accurate_ends import accurate_function
from flatout_agent.speedups.precision import AutocastCall

SURE = 9.5
"""A score with which one of two classes has a probability of 0.99993."""


class Classifier(nn.Module):
    """Scores that are its inputs, and what is made of them at the end."""

    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scores, self.end = nn.Linear(2, 2, bias=False), end
        nn.init.eye_(self.scores.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.scores(x))


def gradient(model: nn.Module, loss: Callable[[Tensor], Tensor]) -> float:
    """Of the first weight, for an example of which the model is sure."""
    model.zero_grad()
    loss(model(torch.tensor([[SURE, 0.0]]))).backward()
    grad = model.get_parameter("scores.weight").grad
    assert grad is not None
    return float(grad[0, 0])


CASES = [
    pytest.param(lambda s: functional.log_softmax(s, 1), lambda o: -o[0, 0], id="log_softmax"),
    pytest.param(nn.LogSoftmax(dim=-1), lambda o: -o[0, 0], id="LogSoftmax"),
    pytest.param(lambda s: s.softmax(1), lambda o: -o[0, 0].log(), id="softmax"),
    pytest.param(
        lambda s: s[:, :1].sigmoid().view(-1), lambda o: -(1 - o).log().sum(), id="sigmoid"
    ),
]


@pytest.mark.parametrize(("end", "loss"), CASES)
def test_the_gradient_of_an_example_that_the_model_is_sure_of_is_not_lost(
    end: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor]
) -> None:
    model = Classifier(end)
    written = gradient(model, loss)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = gradient(model, loss)
    if not accurate_function("cpu", "log_softmax.int")._holders:  # no other test has left it on
        assert not abs(rounded / written - 1) < 0.5, "torch has mended it: ours can go"

    for _ in range(2):  # the second time it is known from the first call on
        undo = AutocastCall(model, "cpu", torch.bfloat16).around(Job(), model)
        first = gradient(model, loss)
        second = gradient(model, loss)
        undo()
    assert first == pytest.approx(written, rel=0.02)
    assert second == pytest.approx(written, rel=0.02)

    with torch.autocast("cpu", torch.bfloat16):
        assert gradient(model, loss) == pytest.approx(rounded, nan_ok=True), "torch's own is back"


def test_gates_inside_a_model_stay_as_they_are() -> None:
    kinds: list[torch.dtype] = []

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            gate = self.first(x).sigmoid()
            kinds.append(gate.dtype)
            out: Tensor = self.last(x * gate)
            return out

    model = Gated()
    undo = AutocastCall(model, "cpu", torch.bfloat16).around(Job(), model)
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
    undo()
    assert kinds == [torch.bfloat16] * 3


def test_compiled_code_is_as_accurate() -> None:
    model = Classifier(lambda s: functional.log_softmax(s, 1))
    written = gradient(model, lambda o: -o[0, 0])
    call = AutocastCall(model, "cpu", torch.bfloat16)
    undo = call.around(Job(), model)
    model.forward = torch.compile(model.forward, backend="aot_eager")
    found = gradient(model, lambda o: -o[0, 0])
    undo()
    assert found == pytest.approx(written, rel=0.02)
