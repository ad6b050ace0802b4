"""Samples survive the way between processes, to the last bit."""

from __future__ import annotations

import numpy as np
import torch

from flatout_agent.ranks.loading.packing import packed, unpacked
from flatout_agent.ranks.loading.proof import packed_rows
from flatout_agent.speedups.samples import samples

ROWS = [
    torch.tensor(3.5),
    torch.ones(2, 0),
    torch.arange(6).view(2, 3).t(),
    torch.ones(3, dtype=torch.bfloat16),
    torch.tensor([True, False]),
    {"x": np.arange(4, dtype=np.float32), "name": "row", "none": None},
    (1, float("inf"), 2 + 1j, b"bytes"),
]


def test_there_and_back() -> None:
    sent = packed(ROWS)
    assert (sent.dtype, sent.ndim) == (torch.uint8, 1)
    back = unpacked(sent)
    assert samples.same(back, ROWS)
    back[2].add_(1)  # a script may write into its batch


def test_a_row_of_much_data_takes_no_more_than_itself() -> None:
    data = torch.zeros(10**6)
    assert packed_rows([data[:2], data[2:4]]).numel() < 10_000
