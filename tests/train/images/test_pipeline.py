"""Batches finished aside: on the stream, in order, taken over after the event."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flatout_train.images.pipeline import SideThread, _pool


class FakeCuda:
    """The parts of `torch.cuda` that are used, writing down what is done."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.inside = threading.local()

    def Stream(self, device: torch.device) -> FakeCuda:  # noqa: N802 (torch's name)
        return self

    @contextlib.contextmanager
    def stream(self, stream: FakeCuda) -> Iterator[None]:
        self.inside.here = True
        yield
        self.inside.here = False

    def record_event(self) -> str:
        assert self.inside.here, "the event is on the side stream"
        self.done.append("recorded")
        return "event"

    def current_stream(self, device: torch.device) -> FakeCuda:
        return self

    def wait_event(self, event: str) -> None:
        self.done.append(f"waited for {event}")


class FakeTensor:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def record_stream(self, stream: FakeCuda) -> None:
        self.cuda.done.append("used here")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    return fake


def test_a_batch_is_made_on_the_side_and_taken_over_after_its_event(cuda: FakeCuda) -> None:
    lane = SideThread(torch.device("cuda"))

    def work() -> Any:
        assert cuda.inside.here and threading.current_thread() is not threading.main_thread()
        cuda.done.append("made")
        return FakeTensor(cuda), FakeTensor(cuda)

    started = [lane.start(work), lane.start(lambda: None)]
    batch = lane.take(started[0])
    assert batch is not None and len(batch) == 2
    assert lane.take(started[1]) is None
    lane.close()
    first = [one for one in cuda.done if one != "recorded"][:4]
    assert first == ["made", "waited for event", "used here", "used here"]


def test_an_error_on_the_side_is_raised_where_the_batch_is_asked_for(cuda: FakeCuda) -> None:
    lane = SideThread(torch.device("cuda"))

    def work() -> Any:
        raise ZeroDivisionError("here")

    started = lane.start(work)
    with pytest.raises(ZeroDivisionError, match="here"):
        lane.take(started)
    lane.close()


def test_a_worker_computes_with_one_thread_and_the_program_keeps_its_own() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)

    def work() -> int:
        torch.ones(200_000).add_(1).sum()  # large enough for a team of threads
        return torch.get_num_threads()

    try:
        with _pool(2) as pool:
            assert [pool.submit(work).result() for _ in range(4)] == [1, 1, 1, 1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
