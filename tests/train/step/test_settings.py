"""What a process is told once, and the way back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from flatout_train.step.choices import Choices

CUDA = torch.device("cuda", 0)


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Choices]:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = Choices("auto", "auto", "auto", "auto")
    yield found
    found.undo()
    assert torch.backends.cudnn.benchmark is False


def test_cudnn_measures_the_convolutions_on_cuda(choices: Choices) -> None:
    choices.begin_settings(nn.Sequential(nn.Conv2d(3, 4, 3)), CUDA)
    assert torch.backends.cudnn.benchmark is True
    assert choices.notes["cudnn-benchmark"] == "cuDNN times the kernels for each shape"


def test_without_convolutions_or_where_each_bit_stays_it_does_not(choices: Choices) -> None:
    choices.begin_settings(nn.Linear(2, 2), CUDA)
    strict = Choices("fp32", False, "auto", "auto")
    strict.follow(None)
    strict.begin_settings(nn.Conv2d(3, 4, 3), CUDA)
    assert torch.backends.cudnn.benchmark is False
    assert "cudnn-benchmark" not in choices.notes | strict.notes


def test_a_script_that_asks_for_determinism_keeps_it(
    choices: Choices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    choices.begin_settings(nn.Conv2d(3, 4, 3), CUDA)
    assert torch.backends.cudnn.benchmark is False
    assert "deterministic" in choices.notes["cudnn-benchmark"]


def test_on_the_cpu_freed_memory_is_kept() -> None:
    found = Choices("auto", "auto", "auto", "auto")
    found.begin_settings(nn.Conv2d(3, 4, 3), torch.device("cpu"))
    found.undo()
    assert "allocator" in found.notes
    assert "cudnn-benchmark" not in found.notes
