"""The ways to make a step fit into memory, and which of them is fastest, by measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from flatout_train.step.recomputation import Policy

WARM_UP = 2
"""Calls of a way that are not timed: allocator and compiler settle."""
TIMED = 3

Seconds = Callable[[], float | None]
"""Tells how long a call took; None: the device is still at it."""

_BEATEN = "does more in as many parts"
_LESS: dict[Policy | None, tuple[Policy | None, ...]] = {
    None: (),
    "selective": (None,),
    "alternate": (None,),
    "all": (None, "alternate"),
}
"""What does less than a policy, and so is faster in as many parts. "selective" computes less than
"all", but watches every operation."""

_TOLD: dict[Policy, str] = {
    "all": "recomputes every block",
    "alternate": "recomputes every second block",
    "selective": "recomputes what is cheap in every block",
}


@dataclass(eq=False)
class Way:
    """Recompute by `policy` (None: nothing), in as many parts as it takes."""

    policy: Policy | None
    most: float = 0.0
    """The largest load of one part that fitted: elements of the batch's tensors."""
    least: float = math.inf
    """The smallest load of one part that did not."""
    given_up: str = ""
    """Why it cannot be used, or need not be measured."""
    last_parts: int = 1
    calls: int = 0
    times: list[tuple[Seconds, float]] = field(default_factory=list)
    """Of each timed call: its seconds, once they are known, and its load."""

    def parts(self, load: float, rows: int) -> int:
        """The fewest parts, of 1, 2, 4, ... and one a sample, not known to be too large."""
        parts = 1
        while parts < rows and self.share(load, rows, parts) >= self.least:
            parts = min(2 * parts, rows)
        return parts

    @staticmethod
    def share(load: float, rows: int, parts: int) -> float:
        """The load of the largest part."""
        return load * -(-rows // parts) / rows

    def called(self, seconds: Seconds, load: float) -> None:
        """One call went through."""
        self.calls += 1
        if self.calls > WARM_UP:
            self.times.append((seconds, load))

    def rate(self) -> float | None:
        """Median seconds an element; None: not enough calls, or the device is still at them."""
        if len(self.times) < TIMED:
            return None
        taken = [(seconds(), load) for seconds, load in self.times]
        if any(seconds is None for seconds, _ in taken):
            return None
        return median(seconds / load for seconds, load in taken if seconds is not None)

    def told(self) -> str:
        """In words."""
        parts = f"split in {self.last_parts}" if self.last_parts > 1 else "not split"
        return f"{_TOLD[self.policy]}, {parts}" if self.policy is not None else parts


class Contest:
    """Runs the ways one after the other, on real steps, and keeps the fastest."""

    def __init__(self, ways: list[Way]) -> None:
        self.ways = ways
        self.kept: Way | None = None
        self._turn = 0

    def current(self, load: float, rows: int) -> Way | None:
        """The way for a batch of this load and this many samples; None: there is none left."""
        while self.kept is None and self._turn < len(self.ways):
            way = self.ways[self._turn]
            if not way.given_up and self._is_beaten(way, load, rows):
                way.given_up = _BEATEN
            if not way.given_up and way.rate() is None:
                return way
            self._turn += 1
        if self.kept is None:
            rates = self._rates()
            able = [way for way in rates if not way.given_up]
            self.kept = min(able, key=rates.__getitem__, default=None)
        return self.kept

    def _rates(self) -> dict[Way, float]:
        return {way: rate for way in self.ways if (rate := way.rate()) is not None}

    def told(self) -> str:
        """What was found, in words."""
        if self.kept is None:
            return "splitting and recomputing are being measured"
        rates = self._rates()
        others = [
            f"{rate / rates[self.kept]:.2f} times as long {way.told()}"
            for way, rate in rates.items()
            if way is not self.kept and self.kept in rates
        ]
        others += [
            f"{_TOLD[way.policy]} was given up ({way.given_up})"
            for way in self.ways
            if way.policy is not None and way.given_up not in ("", _BEATEN)
        ]
        return self.kept.told() + (f" (measured: {', '.join(others)})" if others else "")

    def _is_beaten(self, way: Way, load: float, rows: int) -> bool:
        """Another way does less and needs no more parts."""
        return any(
            other.policy in _LESS[way.policy]
            and not other.given_up
            and other.parts(load, rows) <= way.parts(load, rows)
            for other in self.ways[: self._turn]
        )


class Clock:
    """Times calls on a device without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)

    def start(self) -> Callable[[], Seconds]:
        """Start a time; calling the answer ends it and gives the function that tells seconds."""
        if self._module is None:
            return self._host()
        begin = self._event()

        def end() -> Seconds:
            done = self._event()
            return lambda: begin.elapsed_time(done) / 1000.0 if done.query() else None

        return end

    def _event(self) -> Any:
        event = self._module.Event(enable_timing=True)
        stream = getattr(self._module, "current_stream", None)
        if stream is None:  # MPS has one device, and shows no streams
            event.record()
        else:  # else it would be that of the current device, which need not be the step's
            event.record(stream(self._device))
        return event

    @staticmethod
    def _host() -> Callable[[], Seconds]:
        begin = time.perf_counter()

        def end() -> Seconds:
            seconds = time.perf_counter() - begin
            return lambda: seconds

        return end
