"""Batch normalisation over the ranks' rows; that it equals torch's own is tested in the cases."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flatout_agent.ranks import batch_norm


class Alone:
    """A group of one rank."""

    size = 1

    def joined(self, part: torch.Tensor, dim: int, counts: Sequence[int]) -> torch.Tensor:
        return part

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def test_no_value_is_read_from_the_device() -> None:
    """To read one waits for the device, once in each layer. Meta tensors have none to be read."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6)).to("meta")
    group: Any = Alone()
    undo = batch_norm.shared(group, lambda: True)
    try:
        model(torch.empty(8, 4, device="meta")).square().sum().backward()
    finally:
        undo()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_number_of_values_counts_the_rows_of_all_channels() -> None:
    group: Any = Alone()
    images = torch.randn(5, 3, 4, 2)
    mean, variance, count = batch_norm._statistics(images, group)
    assert count.item() == 5 * 4 * 2
    torch.testing.assert_close(mean, images.mean((0, 2, 3)))
    torch.testing.assert_close(variance, images.var((0, 2, 3), correction=0))
