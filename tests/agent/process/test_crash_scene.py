"""What the frames of an exception held: which label, which tensor, which sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from flatout_agent import wire
from flatout_agent.process import crash_scene


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash is looked at for a second, and a busy machine may need longer."""
    monkeypatch.setattr(crash_scene, "LIMIT_S", 120.0)


def scene(fail: Callable[[], Any]) -> wire.CrashScene:
    with pytest.raises(Exception) as raised:
        fail()
    seen = crash_scene.of(raised.value)
    assert wire.record(wire.dump(seen)) == seen
    return seen


def test_a_label_out_of_range_by_its_name_here() -> None:
    def step() -> None:
        logits, labels = torch.randn(4, 10), torch.tensor([1, -100, 12, 10])
        nn.CrossEntropyLoss()(logits, labels)

    misfit = scene(step).misfit
    assert misfit == wire.Misfit("label", "labels", 12.0, (2,), 2, 4, 10)


def test_an_index_beyond_the_embedding() -> None:
    def step() -> None:
        tokens = torch.randint(0, 100, (4, 7))
        tokens[2, 5] = 100
        nn.Embedding(100, 8)(tokens)

    misfit = scene(step).misfit
    assert misfit is not None
    assert (misfit.kind, misfit.name, misfit.value) == ("index", "tokens", 100.0)
    assert (misfit.position, misfit.limit) == ((2, 5), 100)


def test_no_probability() -> None:
    def step() -> None:
        nn.functional.binary_cross_entropy(torch.tensor([0.5, 1.5]), torch.ones(2))

    misfit = scene(step).misfit
    assert misfit is not None
    assert (misfit.kind, misfit.value, misfit.position) == ("probability", 1.5, (1,))


def test_shapes_types_and_ranges_of_the_frames_innermost_first() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, images: torch.Tensor) -> Any:
            return self.fc(images)

    seen = scene(lambda: Net()(torch.arange(12, dtype=torch.float64).reshape(2, 6)))
    assert seen.misfit is None
    linear = seen.frames[0]
    assert (linear.module, linear.function, linear.own) == ("Linear", "forward", False)
    tensors = {tensor.name: tensor for tensor in linear.tensors}
    assert tensors["self.weight"].shape == (4, 8)
    assert tensors["input"] == wire.TensorSeen("input", (2, 6), "float64", "cpu", 0.0, 11.0, 0)
    assert any(frame.module == "Net" and frame.own for frame in seen.frames)


def test_values_that_are_not_finite_are_counted() -> None:
    def step() -> None:
        batch = {"x": torch.tensor([1.0, float("nan"), float("inf")])}
        raise RuntimeError(len(batch))

    (tensor,) = scene(step).frames[0].tensors
    assert (tensor.name, tensor.low, tensor.high, tensor.nans) == ("batch['x']", 1.0, 1.0, 2)


def test_values_are_never_read_from_a_device_or_a_subclass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Odd(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, *args: Any, **kwargs: Any) -> Any:
            if function.__name__ in ("min", "max", "isfinite", "detach"):
                raise AssertionError("its values were asked for")
            return super().__torch_function__(function, *args, **kwargs)

    def step() -> None:
        kept = (torch.randn(3, device="meta"), torch.randn(2).as_subclass(Odd))
        raise RuntimeError(len(kept))

    meta, odd = scene(step).frames[0].tensors
    assert (meta.device, meta.shape, meta.low) == ("meta", (3,), None)
    assert (odd.shape, odd.low) == ((2,), None)


def test_large_tensors_are_told_by_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_scene, "MOST_ELEMENTS", 10)

    def step() -> None:
        large = torch.zeros(11)
        raise RuntimeError(large.shape)

    (tensor,) = scene(step).frames[0].tensors
    assert (tensor.shape, tensor.low) == ((11,), None)


def test_no_more_frames_and_tensors_than_the_limits() -> None:
    def deeper(number: int) -> None:
        some = [torch.zeros(1) for _ in range(30)]
        others = [torch.zeros(1) for _ in range(30)]
        if number:
            deeper(number - 1)
        raise RuntimeError(len(some) + len(others))

    seen = scene(lambda: deeper(30))
    assert len(seen.frames) == crash_scene.FRAMES
    assert max(len(frame.tensors) for frame in seen.frames) <= crash_scene.TENSORS


def test_which_sample_of_the_data_set() -> None:
    class Rows(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.arange(4)[index // 5]

    assert scene(lambda: list(DataLoader(Rows(), batch_size=4))).sample == 20
