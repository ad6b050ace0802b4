"""Batches on their way to the device: in order, told to the allocator; on CUDA the very numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from flatout_train.loader import copying
from flatout_train.loader.copying import on_device


class FakeSide:
    """A side stream that writes down what happens, on the meta device."""

    def __init__(self, device: torch.device) -> None:
        self.done: list[str] = []
        FakeSide.last = self

    last: FakeSide

    def run(self, copy: Any) -> tuple[Any, int]:
        self.done.append("copy")
        return copy(), len(self.done)

    def join(self, event: int) -> str:
        self.done.append(f"wait for {event}")
        return "stream"


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    streams: list[Any] = []
    monkeypatch.setattr(copying, "SideStream", FakeSide)
    monkeypatch.setattr(copying, "PINNED_FOR", {"meta"})
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: streams.append(stream))
    return streams


def numbered(count: int) -> Iterator[tuple[Any, int]]:
    for number in range(count):
        yield {"x": torch.full((2,), number), "name": str(number)}, number + 100


def test_the_next_batch_is_copied_while_this_one_is_in_use(recorded: list[Any]) -> None:
    batches = on_device(numbered(3), torch.device("meta"))
    batch, mark = next(batches)
    assert (batch["x"].is_meta, batch["name"], mark) == (True, "0", 100)
    assert FakeSide.last.done == ["copy", "copy", "wait for 1"]
    assert [mark for _, mark in batches] == [101, 102]
    assert recorded == ["stream"] * 3


class Encoding:
    """Hides its tensors and moves itself, as Hugging Face's BatchEncoding."""

    moved = False

    def to(self, device: torch.device) -> Encoding:
        self.moved = True
        return self


def test_what_the_allocator_cannot_be_told_of_is_moved_where_it_is_used(
    recorded: list[Any],
) -> None:
    batch = {"own": Encoding(), "sparse": torch.eye(2).to_sparse(), "plain": torch.ones(2)}
    (copied, _), *_ = on_device(iter([(batch, 0)]), torch.device("meta"))
    assert copied["own"].moved
    assert copied["sparse"].is_meta
    assert copied["plain"].is_meta
    assert recorded == ["stream"]


def test_other_devices_get_their_batches_when_they_are_asked_for() -> None:
    batches = numbered(2)
    first = next(on_device(batches, torch.device("cpu")))
    assert first[1] == 100
    assert next(batches)[1] == 101


@pytest.mark.gpu
def test_on_cuda_batches_arrive_whole_while_the_device_is_busy() -> None:
    device = torch.device("cuda", 0)
    busy = torch.randn(4096, 4096, device=device)

    def batches() -> Iterator[tuple[Any, int]]:
        for number in range(50):
            x = torch.full((1 << 18,), number)
            yield {"x": x, "packed": pack_sequence([torch.full((3,), float(number))])}, number

    for batch, number in on_device(batches(), device):
        busy = busy @ busy / 4096
        assert int(batch["x"].min()) == int(batch["x"].max()) == number
        assert batch["packed"].data.device == device
        assert batch["packed"].batch_sizes.device.type == "cpu"
        del batch
