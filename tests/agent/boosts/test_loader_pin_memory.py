from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from flatout_agent.boost import Declined
from flatout_agent.boosts import loader_pin_memory as boost
from flatout_agent.job import Job


def test_the_loader_pins_until_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    loader: DataLoader[Any] = DataLoader([1, 2, 3])
    before = dict(vars(loader))
    applied = boost.apply(Job(), loader, {})
    assert loader.pin_memory is True
    applied.undo()
    assert vars(loader) == before


def test_a_loader_that_pins_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(Declined, match="pins its batches already"):
        boost.apply(Job(), DataLoader([1], pin_memory=True), {})


def test_without_cuda_it_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Declined, match="no CUDA device"):
        boost.apply(Job(), DataLoader([1]), {})


@pytest.mark.gpu
def test_batches_are_pinned_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    loader: DataLoader[Any] = DataLoader([torch.ones(3)] * 4, batch_size=2)
    boost.apply(Job(), loader, {})
    assert all(batch.is_pinned() for batch in loader)
