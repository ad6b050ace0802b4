"""How long an accelerator waits for the program: on a made-up device, and on a real one."""

from __future__ import annotations

import contextlib
import time

import pytest
import torch

from flatout_agent.live import idle
from flatout_agent.live.state import Tick


class Device:
    """A host that launches, and a device that runs behind it; both clocks are given."""

    cycles_per_s = 1e9

    def __init__(self, host_s: float, device_s: float, waits: bool) -> None:
        self.host_s, self.device_s, self.waits = host_s, device_s, waits
        self.now = self.ready = 100.0
        """The host's time, and when the device has nothing left to do."""

    def sleep(self, cycles: int) -> None:
        self.ready = max(self.now, self.ready) + cycles / self.cycles_per_s

    def synchronize(self) -> float:
        self.now = max(self.now, self.ready)
        return self.now

    def step(self) -> None:
        """Pieces of work; the loss is read at the end, or not."""
        for _ in range(10):
            self.now += self.host_s / 10
            self.ready = max(self.now, self.ready) + self.device_s / 10
        if self.waits:
            self.synchronize()


@pytest.mark.parametrize("evaluates", [(), (False,), (True,), (False, True)])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("host_s", "device_s", "expected"),
    [(0.010, 0.004, 0.6), (0.1, 0.01, 0.9), (0.002, 0.010, 0.0), (0.4, 0.9, 0.0)],
)
def test_the_share_that_the_device_waits(
    host_s: float,
    device_s: float,
    expected: float,
    waits: bool,
    evaluates: tuple[bool, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """evaluates: the halves, awake (False) or asleep (True), in whose first step the program also
    evaluates the model for five seconds.
    """
    device = Device(host_s, device_s, waits)
    second, current, used = torch.device("cuda", 1), [None], set()
    asleep, left = [False], set(evaluates)

    @contextlib.contextmanager
    def made_current(found):
        current.append(found)
        yield
        current.pop()

    def sleep(cycles: int) -> None:
        used.add(current[-1])
        asleep[0] = True
        device.sleep(cycles)

    monkeypatch.setattr(torch.cuda, "device", made_current)
    monkeypatch.setattr(torch.cuda, "_sleep", sleep, raising=False)
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda found: used.add(found) or device.synchronize()
    )
    monkeypatch.setattr(time, "perf_counter", lambda: device.now)
    lost: list[float] = []
    unit_s = max(host_s, device_s)
    measuring = idle.of_a_unit(device.synchronize, unit_s, lost.append, second)
    next(measuring)
    share, asleep[0] = None, False
    for _ in range(200):
        device.step()
        unclean = asleep[0] in left
        if unclean:
            left.remove(asleep[0])
            device.synchronize()
            device.now += 5.0
        asleep[0] = False
        try:
            measuring.send(Tick(unit_s, 32, not unclean))
        except StopIteration as done:
            share = done.value
            break
    # A program that waits at the end of each step lets the device wait while it launches the first
    # piece of the next one.
    assert share == pytest.approx(expected, abs=0.15)
    assert sum(lost) >= 0
    assert not left
    assert used == {second}, "the models' device, which is not the current one"


@pytest.mark.gpu
@pytest.mark.parametrize(("pieces", "size", "busy"), [(400, 8, False), (4, 4096, True)])
def test_tiny_kernels_let_a_gpu_wait_and_large_ones_do_not(
    pieces: int, size: int, busy: bool
) -> None:
    factor = torch.randn(size, size, device="cuda") / size

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    def step() -> None:
        value = factor
        for _ in range(pieces):
            value = value @ factor

    for _ in range(3):
        step()
    began = clock()
    step()
    measuring = idle.of_a_unit(clock, clock() - began, lambda seconds: None, None)
    next(measuring)
    with pytest.raises(StopIteration) as done:
        while True:
            step()
            measuring.send(Tick(0.0, 1, True))
    assert done.value.value < 0.1 if busy else done.value.value > 0.4
