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
"""Calls of a way that are not timed, while allocator and compiler warm up."""
TIMED = 3

Seconds = Callable[[], float | None]
"""Seconds that a call took, or None if the device is still busy with it."""

_BEATEN = "another way computes less in as many parts"
_LESS: dict[Policy | None, tuple[Policy | None, ...]] = {
    None: (),
    "selective": (None,),
    "alternate": (None,),
    "all": (None, "alternate"),
}
"""Policies that compute less than a policy, and so are faster in as many parts. "selective"
recomputes less than "all", but intercepts every operation."""

_DESCRIPTIONS: dict[Policy, str] = {
    "all": "recomputes every block",
    "alternate": "recomputes every second block",
    "selective": "recomputes the cheap operations of every block",
}


@dataclass(eq=False)
class Way:
    """Recomputation by `policy` (or none if None), in as many parts as needed to fit."""

    policy: Policy | None
    largest_fitting: float = 0.0
    """The largest load of one part that fitted, in elements of the batch's tensors."""
    smallest_failing: float = math.inf
    """The smallest load of one part that did not fit, in elements."""
    rejection: str = ""
    """Why it cannot be used, or need not be measured; empty for a candidate."""
    last_parts: int = 1
    calls: int = 0
    times: list[tuple[Seconds, float]] = field(default_factory=list)
    """Duration, once known, and load of each timed call."""

    def parts(self, load: float, rows: int) -> int:
        """The fewest parts (1, 2, 4, ..., one per sample) that are not known to be too large."""
        parts = 1
        while parts < rows and self.share(load, rows, parts) >= self.smallest_failing:
            parts = min(2 * parts, rows)
        return parts

    @staticmethod
    def share(load: float, rows: int, parts: int) -> float:
        """The load of the largest part."""
        return load * -(-rows // parts) / rows

    def add_call(self, seconds: Seconds, load: float) -> None:
        """Record a call that succeeded."""
        self.calls += 1
        if self.calls > WARM_UP:
            self.times.append((seconds, load))

    def rate(self) -> float | None:
        """Median seconds per element, or None if there are too few calls or the device is still
        busy.
        """
        if len(self.times) < TIMED:
            return None
        timings = [(seconds(), load) for seconds, load in self.times]
        if any(seconds is None for seconds, _ in timings):
            return None
        return median(seconds / load for seconds, load in timings if seconds is not None)

    def describe(self) -> str:
        """The way as text."""
        parts = f"split in {self.last_parts}" if self.last_parts > 1 else "not split"
        return f"{_DESCRIPTIONS[self.policy]}, {parts}" if self.policy is not None else parts


class Contest:
    """Times the ways one after the other, on real steps, and keeps the fastest."""

    def __init__(self, ways: list[Way]) -> None:
        self.ways = ways
        self.fastest: Way | None = None
        self._turn = 0

    def current(self, load: float, rows: int) -> Way | None:
        """The way for a batch of this load and this many samples, or None if none is left."""
        while self.fastest is None and self._turn < len(self.ways):
            way = self.ways[self._turn]
            if not way.rejection and self._is_beaten(way, load, rows):
                way.rejection = _BEATEN
            if not way.rejection and way.rate() is None:
                return way
            self._turn += 1
        if self.fastest is None:
            rates = self._rates()
            usable = [way for way in rates if not way.rejection]
            self.fastest = min(usable, key=rates.__getitem__, default=None)
        return self.fastest

    def _rates(self) -> dict[Way, float]:
        return {way: rate for way in self.ways if (rate := way.rate()) is not None}

    def describe(self) -> str:
        """The result, or the state, of the comparison as text."""
        if self.fastest is None:
            return "splitting and recomputing are being measured"
        rates = self._rates()
        others = [
            f"{rate / rates[self.fastest]:.2f} times as long {way.describe()}"
            for way, rate in rates.items()
            if way is not self.fastest and self.fastest in rates
        ]
        others += [
            f"{_DESCRIPTIONS[way.policy]}: rejected ({way.rejection})"
            for way in self.ways
            if way.policy is not None and way.rejection not in ("", _BEATEN)
        ]
        return self.fastest.describe() + (f" (measured: {', '.join(others)})" if others else "")

    def _is_beaten(self, way: Way, load: float, rows: int) -> bool:
        """Whether another way computes less and needs no more parts."""
        return any(
            other.policy in _LESS[way.policy]
            and not other.rejection
            and other.parts(load, rows) <= way.parts(load, rows)
            for other in self.ways[: self._turn]
        )


class CallTimer:
    """Times calls on a device without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)

    def start(self) -> Callable[[], Seconds]:
        """Start timing; the returned function stops it and returns the `Seconds` to read later."""
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
        if stream is None:  # MPS has one device, and exposes no streams
            event.record()
        else:  # the default would be the current device's, which need not be the step's
            event.record(stream(self._device))
        return event

    @staticmethod
    def _host() -> Callable[[], Seconds]:
        begin = time.perf_counter()

        def end() -> Seconds:
            seconds = time.perf_counter() - begin
            return lambda: seconds

        return end
