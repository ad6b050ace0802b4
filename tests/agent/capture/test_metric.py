"""What the data says of the answers, where the targets are of a kind that is known."""

from __future__ import annotations

import pytest
import torch

from flatout_agent.capture.metric import measured

LOGITS = torch.tensor([[2.0, 1, 0], [0, 2, 1], [0, 1, 2], [2, 1, 0]])


def of(output: torch.Tensor, target: torch.Tensor | None) -> tuple[str, float] | None:
    found = measured([output], [target], "output", "the last evaluation")
    return None if found is None else (found["name"], pytest.approx(found["value"]))


def test_kinds() -> None:
    assert of(LOGITS, torch.tensor([0, 1, 1, 1])) == ("accuracy", 0.5)
    pixels = LOGITS.T.reshape(1, 3, 2, 2)  # classes in the second dimension
    assert of(pixels, torch.tensor([[[0, 1], [1, 1]]])) == ("accuracy", 0.5)
    tokens = LOGITS.reshape(1, 4, 3)  # classes in the last one; -100 is left out
    assert of(tokens, torch.tensor([[0, 1, 1, -100]])) == ("accuracy", 2 / 3)
    assert of(torch.tensor([[1.0], [-1]]), torch.tensor([1.0, 1])) == ("binary accuracy", 0.5)
    assert of(torch.tensor([0.9, 0.1]), torch.tensor([1, 0])) == ("binary accuracy", 1.0)
    assert of(torch.ones(2, 2), torch.full((2, 2), 3.0)) == ("mean squared error", 4.0)


def test_none_where_nothing_fits() -> None:
    assert of(LOGITS, None) is None
    assert of(LOGITS, torch.tensor([0, 1])) is None
    assert of(LOGITS, torch.tensor([0, 1, 2, 3])) is None  # there is no class 3
    assert of(torch.ones(2, 2), torch.ones(3, 2)) is None


def test_over_all_batches_that_have_targets() -> None:
    one, other = torch.tensor([0, 1, 2, 0]), torch.tensor([1])
    found = measured([LOGITS, LOGITS[:1], LOGITS], [one, other, None], "logits", "the samples")
    assert found is not None
    assert found["value"] == pytest.approx(0.8)
    assert "'logits'" in found["how"]
    assert "5 rows of the samples" in found["how"]
