"""Batches under way: order, depth, errors at their turn; on CUDA the very numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from flatout_train.loader import prefetching
from flatout_train.loader.prefetching import Plainly, PrefetchedBatches, copier


class Recorded:
    """A copier that writes down what it was asked for."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.done: list[str] = []

    def start(self, batch: Any) -> Any:
        self.done.append(f"start {batch}")
        return batch

    def finish(self, batch: Any) -> Any:
        self.done.append(f"finish {batch}")
        return batch


def numbered(count: int) -> Iterator[tuple[int, int]]:
    for number in range(count):
        yield number, number + 100


def test_copies_are_started_ahead_by_two_a_call_up_to_the_depth() -> None:
    copies = Recorded(2)
    ahead = PrefetchedBatches(numbered(6), copies)
    assert next(ahead) == (0, 100)
    assert copies.done == ["start 0", "start 1", "finish 0"]
    assert next(ahead) == (1, 101)
    assert copies.done[3:] == ["start 2", "start 3", "finish 1"]
    assert next(ahead) == (2, 102)
    assert copies.done[6:] == ["start 4", "finish 2"]
    assert list(ahead) == [(number, number + 100) for number in (3, 4, 5)]
    with pytest.raises(StopIteration):
        next(ahead)


def test_without_depth_a_batch_is_fetched_when_it_is_asked_for() -> None:
    copies = Recorded(0)
    ahead = PrefetchedBatches(numbered(3), copies)
    assert copies.done == []
    assert [next(ahead)[0] for _ in range(3)] == [0, 1, 2]
    assert copies.done[:2] == ["start 0", "finish 0"]


def test_an_error_in_fetching_comes_after_the_batches_before_it() -> None:
    def failing() -> Iterator[tuple[int, int]]:
        yield from numbered(3)
        raise OSError("the disk is gone")

    ahead = PrefetchedBatches(failing(), Recorded(3))
    assert [next(ahead)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)


def test_only_devices_with_streams_are_prefetched_to() -> None:
    assert copier(torch.device("cpu"), 2).depth == 0
    plainly = Plainly(torch.device("meta"))
    assert plainly.finish(plainly.start({"x": torch.ones(2)}))["x"].is_meta


class Stream:
    def __init__(self, module: FakeModule) -> None:
        self.module = module

    def record_event(self) -> str:
        return f"event {len(self.module.calls)}"

    def wait_event(self, event: str) -> None:
        self.module.calls.append(f"wait for {event}")

    def __enter__(self) -> None:
        self.module.calls.append("aside")

    def __exit__(self, *error: object) -> None:
        self.module.calls.append("back")


class FakeModule:
    """What `torch.cuda` and `torch.xpu` have in common, on the meta device."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802
        return Stream(self)

    def stream(self, stream: Stream) -> Stream:
        return stream

    def current_stream(self, device: torch.device) -> Stream:
        return Stream(self)


class Recording:
    """An object that moves itself."""

    def __init__(self) -> None:
        self.recorded = 0

    def to(self, device: torch.device) -> Recording:
        return self

    def record_stream(self, stream: Any) -> None:
        self.recorded += 1


def test_a_side_stream_copies_waits_and_tells_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = FakeModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    recorded: list[str] = []
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: recorded.append(tensor.device.type)
    )
    monkeypatch.setattr(
        torch.Tensor, "to", lambda *a, **k: pytest.fail("the boost would copy it again")
    )
    side = prefetching.SideStreamBatches(torch.device("meta"), 2)
    own = Recording()
    copied = side.finish(side.start({"x": torch.ones(2), "own": own, "name": "a"}))
    assert copied["x"].is_meta
    assert copied["name"] == "a"
    assert own.recorded == 1
    assert recorded == ["meta"]
    assert module.calls == ["aside", "back", "wait for event 1"]


class Encoding:
    """Hides its tensors and moves itself, as Hugging Face's BatchEncoding."""

    def __init__(self, module: FakeModule) -> None:
        self.module = module

    def to(self, device: torch.device) -> Encoding:
        self.module.calls.append("moved")
        return self


def test_what_the_allocator_cannot_be_told_of_is_moved_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = FakeModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        if tensor.layout is not torch.strided:
            raise NotImplementedError("record_stream of SparseCUDA")

    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    side = prefetching.SideStreamBatches(torch.device("meta"), 2)
    batch = {"own": Encoding(module), "sparse": torch.eye(2).to_sparse(), "plain": torch.ones(2)}
    copied = side.finish(side.start(batch))
    assert copied["plain"].is_meta
    assert copied["sparse"].is_meta
    assert module.calls == ["aside", "back", "wait for event 1", "moved"]


@pytest.mark.gpu
def test_on_cuda_batches_arrive_whole_while_the_device_is_busy() -> None:
    device = torch.device("cuda", 0)
    side = prefetching.SideStreamBatches(device, 3)
    busy = torch.randn(4096, 4096, device=device)

    def batches() -> Iterator[tuple[Any, int]]:
        for number in range(50):
            x = torch.full((1 << 18,), number).pin_memory()
            yield {"x": x, "packed": pack_sequence([torch.full((3,), float(number))])}, number

    for batch, number in PrefetchedBatches(batches(), side):
        busy = busy @ busy / 4096
        assert int(batch["x"].min()) == int(batch["x"].max()) == number
        assert batch["packed"].data.device == device
        assert batch["packed"].batch_sizes.device.type == "cpu"
        del batch
