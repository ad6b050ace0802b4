"""The device calls around a recording, torch's own functions replaced where no GPU is."""

from __future__ import annotations

import _thread
import threading
import warnings
from typing import Any

import pytest
import torch

from flatout_agent import captures
from flatout_agent.api.step import graph_cuda


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The modes in which torch was asked to watch for waits, in order."""
    asked: list[Any] = []

    def watch(mode: Any) -> None:
        asked.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", watch)
    return asked


def read_loss() -> None:
    warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)


def test_a_wait_is_told_with_the_line_of_the_users_program(modes: list[Any]) -> None:
    with graph_cuda._waits() as found:
        read_loss()
    line = read_loss.__code__.co_firstlineno + 1
    assert found == [f"the step waits for the device at {__file__}:{line}"]
    assert modes == ["warn", 0]


@pytest.mark.parametrize(
    ("start", "waits"),
    [
        pytest.param(lambda run: threading.Thread(target=run).start(), 0, id="a loader's thread"),
        pytest.param(lambda run: _thread.start_new_thread(run, ()), 1, id="one of autograd's"),
    ],
)
def test_whose_waits_are_the_steps(modes: list[Any], start: Any, waits: int) -> None:
    """A thread that Python's `threading` did not start stands in for those of autograd."""
    over = threading.Event()

    def run() -> None:
        read_loss()
        over.set()

    with graph_cuda._waits() as found:
        start(run)
        assert over.wait(10)
    assert len(found) == waits


def test_other_warnings_are_shown_as_ever_and_errors_stop_the_watch(modes: list[Any]) -> None:
    with (
        pytest.warns(UserWarning, match="of the user's own"),
        pytest.raises(ZeroDivisionError),
        graph_cuda._waits() as found,
    ):
        warnings.warn("of the user's own", stacklevel=1)
        raise ZeroDivisionError
    assert found == []
    assert modes == ["warn", 0]


class Generator:
    """torch.Generator's calls for graphs: a state can be shared, and one may be stuck."""

    def __init__(self, device: Any = None) -> None:
        self.state: Any = "stuck in a capture"

    def set_state(self, state: Any) -> None:
        self.state = state

    def graphsafe_get_state(self) -> Any:
        return self

    def graphsafe_set_state(self, state: Any) -> None:
        self.state = state.state


@pytest.mark.parametrize("cleans_up_itself", [True, False])
def test_after_a_failed_recording_everything_is_as_before(
    cleans_up_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def end(index: int, pool: Any) -> None:
        if cleans_up_itself:
            raise RuntimeError("not currently recording to mempool_id")
        told.append(("end", index, pool))

    stuck = Generator()
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_releasePool", lambda *a: told.append(("release", *a)), raising=False
    )
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: told.append(("stream", stream)))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "default_generators", (stuck,))
    monkeypatch.setattr(torch, "Generator", Generator)
    captures.clean_up(torch, "the stream before", "as before", [(0, 7)])
    assert stuck.state == "as before"
    freed = [] if cleans_up_itself else [("end", 0, (0, 7)), ("release", 0, (0, 7))]
    assert told == [("stream", "the stream before"), *freed]


def test_only_cuda_devices_record() -> None:
    assert graph_cuda.CudaRecorder(torch.device("cuda")).refusal() is None
    assert "xpu" in (graph_cuda.CudaRecorder(torch.device("xpu")).refusal() or "")
