from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flatout
from flatout_train.errors import UsageError
from flatout_train.step.choices import Choices

CUDA = torch.device("cuda", 0)
PLAN = "version = 1\n\n[boosts.bf16-autocast]\n"


def made(**options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    return flatout.train_step(
        model, F.cross_entropy, torch.optim.AdamW(model.parameters()), **options
    )


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 8), torch.randint(0, 3, (4,))


def test_a_plan_decides_what_is_left_to_auto(tmp_path: Path) -> None:
    path = tmp_path / "flatout.toml"
    path.write_text(PLAN, encoding="utf-8")
    step = made(plan=path)
    step(batch())
    assert step.notes["precision"].startswith("bf16")
    assert step.notes["compile"].startswith("no")
    assert step.notes["optimizer"] == "as written: the plan says so"
    assert str(path) in step.notes["plan"]
    step.close()
    with pytest.raises(UsageError, match=r"missing\.toml"):
        made(plan=tmp_path / "missing.toml")


def test_what_was_asked_for_by_name_holds_against_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "flatout.toml"
    path.write_text(PLAN, encoding="utf-8")
    step = made(plan=path, precision="fp32")
    assert step.notes["precision"].startswith("fp32")
    step.close()


@pytest.mark.slow
def test_the_plain_loop_keeps_layout_and_kernel_unless_they_are_asked_for() -> None:
    step = made(precision="fp32", compile=False)
    assert step.notes["optimizer"].startswith("as written")
    assert step.notes["layout"] == "contiguous: requested"
    assert made(precision="fp32", compile="blocks").notes["optimizer"].startswith("fused")
    step = made(compile=False)
    assert step.notes["optimizer"].startswith("fused")
    step.close()
    assert not any(group["fused"] for group in step.optimizer.param_groups)


def test_images_go_in_channels_last_where_the_model_takes_them() -> None:
    seen = []

    class Model(nn.Module):
        def __init__(self, view: bool) -> None:
            super().__init__()
            self.inner, self.view = nn.Conv2d(3, 8, 3), view

        def forward(self, images: Tensor) -> Tensor:
            seen.append(images.is_contiguous(memory_format=torch.channels_last))
            features = self.inner(images)
            return features.view(len(images), -1) if self.view else features.flatten(1)

    images = torch.randn(2, 3, 8, 8), torch.zeros(2).long()
    for view, places in ((False, [True, True]), (True, [True, False, False])):
        model = Model(view)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = flatout.train_step(model, F.cross_entropy, optimizer, compile=False)
        step(images)
        step(images)
        assert seen == places, step.notes["layout"]
        assert step.notes["layout"].startswith("contiguous" if view else "channels_last")
        step.close()
        seen.clear()


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
