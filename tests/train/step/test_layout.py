"""layout: where channels-last is taken, what it leaves alone, and models that cannot take it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from flatout_train.step import layout


class Pair(NamedTuple):
    image: Tensor
    label: Tensor


@dataclass(frozen=True)
class Sample:
    image: Tensor
    name: str


class Views(nn.Module):
    """Flattens as many a small network does; only the usual layout will do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout2d(0.5))
        self.head = nn.Linear(4 * 36, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).view(x.shape[0], -1))
        return out


def is_last(tensor: Tensor, form: torch.memory_format = torch.channels_last) -> bool:
    return tensor.is_contiguous(memory_format=form) and not tensor.is_contiguous()


def test_batches_are_placed_and_nests_keep_their_types() -> None:
    place = layout.choose("auto", nn.Conv2d(3, 4, 3)).place
    image, label = torch.randn(2, 3, 8, 8), torch.arange(2)
    pair = place(Pair(image, label))
    assert type(pair) is Pair
    assert is_last(pair.image)
    assert pair.label is label
    torch.testing.assert_close(pair.image, image)
    nest = place({"a": [image, Sample(image, "x")], "b": (torch.ones(2, 3, 4, 4).long(), image[0])})
    assert is_last(nest["a"][0])
    assert is_last(nest["a"][1].image)
    assert nest["a"][1].name == "x"
    assert nest["b"][0].is_contiguous(), "whole numbers are no images"
    again = place(pair)
    assert again is pair, "what is in place is not copied"
    gray = place(torch.randn(2, 1, 8, 8))
    assert gray.stride() == (64, 1, 8, 1), "kernels go by strides"


def test_volumes_get_their_own_format_and_images_stay() -> None:
    chosen = layout.choose("channels_last", nn.Conv3d(2, 4, 3))
    assert is_last(chosen.place(torch.randn(1, 2, 4, 4, 4)), torch.channels_last_3d)
    image = torch.randn(1, 2, 4, 4)
    assert chosen.place(image) is image


def test_weights_and_the_state_dict_keep_their_format() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    chosen = layout.choose("channels_last", model)
    loss = model(chosen.place(torch.randn(2, 3, 8, 8))).sum()
    loss.backward()
    assert all(p.is_contiguous() and p.grad.is_contiguous() for p in model.parameters())  # type: ignore[union-attr]
    chosen.undo()
    image = torch.randn(2, 3, 8, 8)
    assert chosen.place(image) is image
    assert chosen.note() == "contiguous: closed"


def gradients(model: nn.Module, loss: Tensor) -> Tensor:
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_model_that_needs_the_usual_layout_runs_as_if_nothing_had_been_tried() -> None:
    model = Views()
    plain, image = copy.deepcopy(model), torch.randn(4, 3, 8, 8)
    torch.manual_seed(1)
    wanted = gradients(plain, plain(image).square().mean())
    chosen = layout.choose("auto", model)
    call = chosen.around(lambda batch: model(batch).square().mean())
    torch.manual_seed(1)
    found = gradients(model, call(chosen.place(image)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert chosen.place(image) is image
    assert ".view()" in chosen.note()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        model(image.to(memory_format=torch.channels_last))


def test_the_models_own_errors_pass_and_a_proven_call_is_only_made() -> None:
    chosen = layout.choose("auto", nn.Conv2d(3, 4, 3))
    fail, calls = [True], []

    def call(batch: Any) -> Tensor:
        calls.append(batch)
        if fail[0]:
            raise RuntimeError("view size is not compatible" if len(calls) > 2 else "mine")
        return torch.ones(())

    checked = chosen.around(call)
    with pytest.raises(RuntimeError, match="mine"):
        checked(0)
    fail[0] = False
    checked(0)
    fail[0] = True
    with pytest.raises(RuntimeError, match="view size"):
        checked(0)
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("asked", "model", "word"),
    [
        ("contiguous", nn.Conv2d(1, 1, 1), "requested"),
        ("auto", nn.Linear(2, 2), "no 2-d or 3-d convolution"),
        ("channels_last", nn.Conv1d(1, 1, 1), "no 2-d or 3-d convolution"),
        ("auto", nn.Conv2d(1, 1, 1).double(), "float64"),
    ],
)
def test_contiguous_with_its_reason(asked: str, model: nn.Module, word: str) -> None:
    chosen = layout.choose(asked, model)
    assert chosen.name == "contiguous"
    assert word in chosen.reason
    assert chosen.note() == f"contiguous: {chosen.reason}"
    image = torch.randn(1, 1, 2, 2)
    assert chosen.place(image) is image
    assert chosen.around(torch.sum) is torch.sum
