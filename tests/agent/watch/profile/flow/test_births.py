"""Tensors that the host makes of its own values, the same in both steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from agent.watch.profile.flow.test_follow import WIDTH, Loop, text

TABLE = np.random.default_rng(0).random((256, WIDTH), dtype=np.float32)


def scaled(loop: Loop) -> float:
    wide = np.sort(TABLE, axis=0)  # leads there
    shift = WIDTH  # does as well
    np.linalg.norm(TABLE)
    made = torch.from_numpy(wide * shift)  # made
    return (loop.output * made).sum().item()


def test_the_lines_that_lead_to_a_tensor_of_equal_bytes() -> None:
    (row,) = Loop(scaled).followed().host_constants
    assert (row.function, row.calls, row.shape, row.dtype) == ("scaled", 1, "256x64", "float32")
    assert text(row.where).endswith("# made")
    ends = [text(line).partition("# ")[2] for line in row.lines]
    assert ends == ["leads there", "does as well", "made"]


def drawn(loop: Loop) -> float:
    values = TABLE[np.random.permutation(256)]
    return (loop.output * torch.from_numpy(values)).sum().item()


def outlying(loop: Loop) -> float:
    flags = np.abs(loop.x.detach().numpy()) > 100.0
    return (loop.output * torch.from_numpy(flags)).sum().item()


def of_the_output(loop: Loop) -> float:
    norm = np.linalg.norm(loop.output.detach().numpy())
    ranks = np.argsort(np.argsort(TABLE * (norm > 0), axis=0), axis=0)
    return (loop.output * torch.from_numpy(ranks)).sum().item()


def by_its_shape(loop: Loop) -> float:
    values = np.sort(TABLE[np.random.permutation(256)], axis=1)
    mask = np.tril(np.ones(values.shape, np.float32))
    product = torch.from_numpy(values) * torch.from_numpy(mask)
    return (loop.output * product).sum().item()


@pytest.mark.parametrize("extra", [drawn, outlying, of_the_output])
def test_what_changes_or_says_nothing(extra: Callable[[Loop], Any]) -> None:
    assert Loop(extra).followed().host_constants == ()


def test_what_leads_to_what_changes_is_none_of_its_lines() -> None:
    rows = Loop(by_its_shape).followed().host_constants
    assert not any("np.sort" in text(line) for row in rows for line in row.lines)


def test_the_functions_are_put_back() -> None:
    before = torch.from_numpy, torch.tensor
    Loop(scaled).followed()
    assert (torch.from_numpy, torch.tensor) == before
