"""The device calls around a recording, torch's own functions replaced where no GPU is."""

from __future__ import annotations

import _thread
import contextlib
import threading
import warnings
from typing import Any

import pytest
import torch

from flatout_agent.speedups.graphs import captures
from flatout_train.step.graph import cuda


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
    with cuda._waits() as found:
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

    with cuda._waits() as found:
        start(run)
        assert over.wait(120)
    assert len(found) == waits


def test_other_warnings_are_shown_as_ever_and_errors_stop_the_watch(modes: list[Any]) -> None:
    with (
        pytest.warns(UserWarning, match="of the user's own"),
        pytest.raises(ZeroDivisionError),
        cuda._waits() as found,
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


class Device:
    """Where a capture has failed: the calls that clean up, and the generator that hangs in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[Any] = []
        self.generator = Generator()
        self.is_routed = True
        """Allocations still go to the pool."""
        self._set = monkeypatch.setattr
        monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool", raising=False)
        monkeypatch.delattr(torch._C, "_cuda_endAllocateCurrentStreamToPool", raising=False)
        self.offer("_cuda_endAllocateToPool", self._end)
        self.offer("_cuda_releasePool", lambda *a: self.told.append(("release", *a)))
        self._set(torch.cuda, "set_stream", lambda stream: self.told.append(("stream", stream)))
        self._set(torch.cuda, "current_device", lambda: 0)
        self._set(torch.cuda, "default_generators", (self.generator,))
        self._set(torch, "Generator", Generator)
        self.be("2.13.0+cu130")

    def offer(self, name: str, function: Any) -> None:
        self._set(torch._C, name, function, raising=False)

    def be(self, version: str, hip: str | None = None) -> None:
        self._set(torch, "__version__", version)
        self._set(torch.version, "hip", hip)

    def _end(self, index: int, pool: Any) -> None:
        if not self.is_routed:
            raise RuntimeError("not currently recording to mempool_id")
        self.told.append(("end", index, pool))

    def clean_up(self, graph: Any = None) -> list[Any]:
        captures.clean_up("the stream before", "as before", [(0, 7)], graph)
        assert self.generator.state == "as before"
        assert self.told.pop(0) == ("stream", "the stream before")
        return self.told


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


class Failed:
    """A graph whose capture did not come to an end."""

    def pool(self) -> Any:
        raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")


class Ended:
    """A graph whose capture did, although the step failed: it counts itself out of its pool."""

    def pool(self) -> Any:
        return (0, 7)


END, RELEASE = ("end", 0, (0, 7)), ("release", 0, (0, 7))


@pytest.mark.parametrize("graph", [None, Failed()])
def test_after_a_failed_recording_everything_is_as_before(device: Device, graph: Any) -> None:
    device.be("2.12.0")
    assert device.clean_up(graph) == [END, RELEASE]


@pytest.mark.parametrize(("graph", "freed"), [(None, []), (Failed(), [RELEASE]), (Ended(), [])])
def test_where_torch_ends_the_failed_capture_the_pool_is_still_to_be_released(
    device: Device, graph: Any, freed: list[Any]
) -> None:
    """Once, and never for a graph that does so itself: the process would end."""
    device.is_routed = False
    assert device.clean_up(graph) == freed


def test_before_torch_2_8_the_end_has_another_name(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.be("2.6.0+cu124")
    device.offer("_cuda_endAllocateCurrentStreamToPool", device._end)
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool")
    assert device.clean_up() == [END, RELEASE]


@pytest.mark.parametrize(
    ("version", "hip"), [("2.7.1", None), ("2.14.0a0+git1", None), ("2.12.1+rocm7", "7.2")]
)
def test_a_failed_graph_that_frees_its_pool_itself_is_left_to_it(
    device: Device, version: str, hip: str | None
) -> None:
    """2.7: the capture has ended, the graph was not made. 2.14, AMD: whatever has failed."""
    device.be(version, hip)
    device.is_routed = False
    assert device.clean_up(Failed()) == []


class Recording:
    """torch.cuda.graph where the recording fails, as it begins or when it ends."""

    begins = True

    def __init__(self, graph: Any, pool: Any, stream: Any, **settings: Any) -> None:
        self.taken = (pool, stream)

    def __enter__(self) -> None:
        if not self.begins:
            raise RuntimeError("it cannot begin")

    def __exit__(self, *error: object) -> None:
        raise RuntimeError("previous error during capture")


@pytest.mark.parametrize("begins", [True, False])
def test_a_failed_recording_tells_its_graph_and_leaves_pool_and_stream(
    monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    told: list[Any] = []
    for name, stand_in in {
        "device": lambda device: contextlib.nullcontext(),
        "graph_pool_handle": object,
        "Stream": object,
        "CUDAGraph": Failed,
        "current_stream": lambda: "the stream before",
        "get_rng_state": lambda: "as before",
        "graph": Recording,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(Recording, "begins", begins)
    monkeypatch.setattr(captures, "clean_up", lambda *arguments: told.append(arguments))
    recorder = cuda.CudaRecorder(torch.device("cuda"))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            recorder.record(dict)
    (current, random, pools, graph), (*_, others, _) = told
    assert (current, random) == ("the stream before", "as before")
    assert isinstance(graph, Failed) is begins
    assert pools != others, "what has failed has left its pool"
