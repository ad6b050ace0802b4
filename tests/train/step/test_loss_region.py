"""Cross entropy as a region of its own: where it pays, with the same numbers, and no trace left."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout_train.step import compiling
from flatout_train.step.compiling import SMALLEST, LossRegion

# Dynamo hides it from people, not from a filter that makes errors of warnings.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
OWN = F.cross_entropy
ROWS, CLASSES = 1024, SMALLEST // 1024


def test_only_many_logits_in_training_are_taken_and_torchs_own_function_comes_back() -> None:
    spy = Mock(side_effect=OWN)
    region = LossRegion(spy)
    many, few = (torch.zeros(*size, requires_grad=True) for size in ((ROWS, CLASSES), (4, 3)))
    target = torch.zeros(ROWS, dtype=torch.long)
    with pytest.raises(ValueError, match="mine"), region:
        F.cross_entropy(few, target[:4])
        F.cross_entropy(many.detach(), target)
        with torch.no_grad():
            F.cross_entropy(many, target)
        assert (spy.call_count, region.used) == (0, False)
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)(many, target)
        assert (spy.call_count, region.used) == (1, True)
        raise ValueError("mine")
    assert torch.equal(loss, OWN(many, target, label_smoothing=0.1))
    assert F.cross_entropy is OWN


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.fc(x))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[0])
        return F.cross_entropy(logits, batch[1], ignore_index=3)


@pytest.mark.usefixtures("traced")
def test_compiled_blocks_have_a_compiled_loss_with_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = Words()
    batch = torch.randn(ROWS, 8), torch.randint(CLASSES, (ROWS,))
    loss_of(model, batch).backward()
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    expected = loss_of(model, batch).item()
    model.zero_grad()
    chosen = compiling.choose("blocks", model, lambda b: loss_of(model, b), torch.device("cpu"))
    try:
        loss = chosen.call(batch)
        loss.backward()
        # The first block's input needs no gradient, those of the others do.
        assert chosen.note() == "blocks and loss: 3 graphs, 1 recompilations, 0 graph breaks"
    finally:
        chosen.undo()
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        assert parameter.grad is not None
        assert (parameter.grad - gradient).norm() <= 0.02 * gradient.norm()
    assert F.cross_entropy is OWN


def test_where_the_compiler_fails_the_loss_is_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, function: Any, **settings: Any) -> None:
            self.function = function

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self.function.__name__ == compiling.cross_entropy.__name__:
                raise torch._dynamo.exc.TorchDynamoException("no kernel for this")
            return self.function(*args, **kwargs)

    monkeypatch.setattr(torch, "compile", Broken)
    model = Words()
    batch = torch.randn(ROWS, 8), torch.randint(CLASSES, (ROWS,))
    chosen = compiling.choose("blocks", model, lambda b: loss_of(model, b), torch.device("cpu"))
    try:
        assert chosen.call(batch).item() == loss_of(model, batch).item()
        assert "no kernel for this" in chosen.note()
    finally:
        chosen.undo()
