"""Passes of evaluation: how long a call takes, also where a call only queues work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout_agent.watch import interruptions
from flatout_agent.watch.interruptions import Evaluations


class Device:
    """Calls take 1 s on the host and 10 s on the device, which the host does not wait for."""

    def __init__(self) -> None:
        self.now, self.free_at = 0.0, 0.0

    def work(self) -> torch.Tensor:
        self.now += 1.0
        self.free_at = max(self.free_at, self.now) + 10.0
        return torch.ones(1)

    def synchronize(self, job: Any) -> None:
        self.now = max(self.now, self.free_at)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(interruptions, "synchronize", found.synchronize)
    monkeypatch.setattr(interruptions.time, "perf_counter", lambda: found.now)
    return found


def evaluations(kind: str) -> Evaluations:
    return Evaluations(SimpleNamespace(device=kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "seconds"), [("cpu", 1.0), ("cuda", 10.1)])
def test_a_call_takes_as_long_as_its_device_does(device: Device, kind: str, seconds: float) -> None:
    found = evaluations(kind)
    device.work()  # training is still under way: that is not the pass's time
    for _ in range(10):
        found.call(device.work, (), {})
    found.end()
    assert found.means_s == [pytest.approx(seconds)]
    found.end()
    assert len(found.means_s) == 1, "without calls there was no pass"


def test_once_all_is_decided_nobody_waits(device: Device) -> None:
    found = evaluations("cuda")
    found.timed = False
    found.call(device.work, (), {})
    found.end()
    assert device.now == 1.0
