from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flatout_train.step import histories
from flatout_train.step.histories import BLOCK, IN_FLIGHT, Histories, PinnedCopies

CPU = torch.device("cpu")


class Late:
    """A device whose values arrive when the test says so."""

    def __init__(self) -> None:
        self.here = False
        self.waited = 0

    def start(self, values: Tensor) -> Callable[[bool], list[float] | None]:
        assert values.dim() == 1

        def read(wait: bool) -> list[float] | None:
            self.waited += wait
            return values.tolist() if self.here or wait else None

        return read


def scalars(*values: float) -> list[Tensor]:
    return [torch.tensor(value) for value in values]


def test_the_host_runs_ahead_by_a_few_blocks_at_most() -> None:
    device = Late()
    history = Histories(CPU, device)
    for step in range(1, BLOCK * 10 + 1):
        history.add(step, scalars(step), None)
        history.take()
        assert (device.waited > 0) == (step >= BLOCK * (IN_FLIGHT + 1))
        device.here = device.waited > 0  # it has caught up


class Unpinned(TorchFunctionMode):
    """Without a GPU nothing can be pinned."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def test_values_come_to_the_host_whatever_the_default_device_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams: list[Any] = []
    event = SimpleNamespace(record=streams.append, synchronize=lambda: None, query=lambda: True)
    module = SimpleNamespace(Event=lambda: event, current_stream=lambda device: ("of", device))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    values = torch.tensor([1.0, 2.0])
    with torch.device("meta"), Unpinned():
        read = PinnedCopies(torch.device("cuda")).start(values)
    assert read(True) == [1.0, 2.0]
    assert streams == [("of", values.device)]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "KEEP", 5)
    history = Histories(CPU)
    for step in range(1, 20):
        history.note(step, float(step), None, None)
    assert list(history.losses) == [15.0, 16.0, 17.0, 18.0, 19.0]
    assert not history.norms
    assert history.arrived == 19
