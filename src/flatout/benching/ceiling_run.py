"""Run the agent's kernels in the user's interpreter and collect their results.

A kernel that crashes or hangs loses only its own row: the rest runs in a new process. Measurements
made before an interruption are kept.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flatout.nouns.ceiling import SHORTER_IS_BETTER, Ceiling, Device, Point
from flatout.nouns.decoding import decode
from flatout.nouns.errors import UserError
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

QUICK_S, FULL_S = 12.0, 200.0
"""Seconds for the measurements of all kernels, from the first one on. --quick promises 40 s on a
GPU; torch's import, first uses of libraries and a look at the machine take the rest.
"""
LEAST_S = 3.0
"""Least seconds for the remaining kernels after a crash, however late it is."""
FURTHER_S = 40.0
"""Extra seconds for each further device, without --quick."""
START_S = 180.0
"""Seconds for torch's import, which may be slow."""
LATE_S = {True: 10.0, False: 60.0}
"""A kernel that exceeds its time by this hangs; loading a device's libraries takes a while."""
HANGS = 2
"""After this many hangs on one device, its other kernels are skipped."""


class Listener(Protocol):
    """Receives progress."""

    def planned(self, count: int) -> None: ...

    def begun(self, ceiling: Ceiling) -> None: ...

    def point(self, ceiling: Ceiling) -> None: ...

    def ended(self, ceiling: Ceiling) -> None: ...


class SilentListener:
    """The listener that does nothing."""

    def planned(self, count: int) -> None: ...

    def begun(self, ceiling: Ceiling) -> None: ...

    def point(self, ceiling: Ceiling) -> None: ...

    def ended(self, ceiling: Ceiling) -> None: ...


@dataclass(frozen=True)
class CeilingOrders:
    """What to measure."""

    quick: bool = False
    wanted: tuple[str, ...] = ()
    """Ids; empty for all that can be measured."""
    devices: tuple[str, ...] = ()
    """cpu, cuda:1; empty for all."""


@dataclass
class Measurements:
    """All results of the kernels."""

    torch: str | None = None
    python: str | None = None
    devices: tuple[Device, ...] = ()
    ceilings: list[Ceiling] = field(default_factory=list)
    interrupted: bool = False
    began: float | None = None
    """When the first process was ready to measure, or None if it is not yet."""
    order: list[tuple[str, str]] = field(default_factory=list)
    """Ids and devices of all planned ceilings in the order shown, not the order of measuring."""
    hangs: Counter[str] = field(default_factory=Counter)
    """How often each device hung."""


class _Process:
    """One process of the agent: its lines until it ends, hangs or is done."""

    def __init__(self, measurements: Measurements, listener: Listener, quick: bool) -> None:
        self._measurements, self._listener, self._quick = measurements, listener, quick
        self.current: Ceiling | None = None
        self.planned: list[tuple[str, str]] = []
        self.done = False
        self.late = False
        self.ending = ""
        self.error: tuple[str, bool] | None = None

    def listen(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Read to its end; a kernel that was running then gets a row with the reason."""
        deadline, seconds = time.monotonic() + START_S, 0.0
        with Conversation(command, env) as talk:
            while (answer := talk.answer(deadline)) is not None:
                self._take(answer)
                if self.done or self.error:
                    return
                if "begin" in answer:
                    seconds = float(answer.get("seconds") or 0.0)
                if answer:
                    limit_s = START_S if self.current is None else seconds + LATE_S[self._quick]
                    deadline = time.monotonic() + limit_s
            self.late = talk.running
            self.ending = "did not end" if self.late else talk.how_it_ended()
        if self.current is not None:
            self._measurements.hangs[self.current.device] += self.late
            self._end(self.ending)
        elif self._measurements.torch is None:
            self.error = (f"torch could not be imported: {self.ending}", False)

    def _take(self, answer: dict[str, Any]) -> None:
        measurements = self._measurements
        if "error" in answer:
            self.error = (str(answer["error"]), bool(answer.get("torch_missing")))
        elif "devices" in answer:
            measurements.torch, measurements.python = answer.get("torch"), answer.get("python")
            devices = [decode(Device, facts) for facts in answer["devices"]]
            measurements.devices = tuple(device for device in devices if device is not None)
        elif "planned" in answer:
            self.planned = [
                (str(kernel_id), str(device)) for kernel_id, device in answer["planned"]
            ]
            if measurements.began is None:
                measurements.began, measurements.order = time.monotonic(), self.planned
            self._listener.planned(len(measurements.ceilings) + len(self.planned))
        elif "lost" in answer:
            measurements.ceilings.append(
                Ceiling(str(answer["lost"]), str(answer["lost"]), "", None, "", note=answer["note"])
            )
        elif "begin" in answer:
            fields = answer["begin"]
            names = ("id", "title", "device", "unit", "note")
            kernel_id, title, device, unit, note = (str(fields.get(name) or "") for name in names)
            self.current = Ceiling(kernel_id, title, device, None, unit, note=note)
            self._listener.begun(self.current)
        elif "point" in answer and self.current is not None:
            size, value = answer["point"]
            self.current = with_point(self.current, Point(str(size), float(value)))
            self._listener.point(self.current)
        elif "end" in answer and self.current is not None:
            self._end(str(answer.get("note") or ""))
        elif "done" in answer:
            self.done = True

    def _end(self, note: str) -> None:
        assert self.current is not None
        notes = "; ".join(text for text in (self.current.note, note) if text)
        ended = replace(self.current, note=notes)
        self._measurements.ceilings.append(ended)
        self.current = None
        self._listener.ended(ended)


def run(
    python: str,
    orders: CeilingOrders,
    listener: Listener | None = None,
    environ: Mapping[str, str] | None = None,
) -> Measurements:
    """Measure; after Ctrl-C the answer is incomplete and says so.

    Raises UserError if torch is missing or cannot be imported.
    """
    measurements = Measurements()
    listener = listener or SilentListener()
    base = os.environ if environ is None else environ
    prefix = "flatout-bench-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as scratch:
        env = conversation.environment(base, scratch)
        try:
            while not _run_process(python, orders, measurements, listener, env):
                pass
        except KeyboardInterrupt:
            measurements.interrupted = True
    places = {key: place for place, key in enumerate(measurements.order)}
    measurements.ceilings.sort(
        key=lambda ceiling: places.get((ceiling.id, ceiling.device), len(places))
    )
    return measurements


def _run_process(
    python: str,
    orders: CeilingOrders,
    measurements: Measurements,
    listener: Listener,
    env: Mapping[str, str],
) -> bool:
    """Whether there is nothing left to measure."""
    finished = [(ceiling.id, ceiling.device) for ceiling in measurements.ceilings]
    process = _Process(measurements, listener, orders.quick)
    command = [
        python,
        str(conversation.program("ceilings")),
        _argument(orders, measurements, finished),
    ]
    try:
        process.listen(command, env)
    except OSError as reason:
        raise UserError(f"{python} cannot be started: {reason.strerror or reason}") from reason
    if process.error is not None:
        error, torch_missing = process.error
        if torch_missing:
            raise UserError(
                f"torch is not installed in {python}",
                "flatout env install, or name the Python that has it: --python",
            )
        raise UserError(f"{python}: torch cannot be used: {error}", "flatout doctor")
    measured = {(ceiling.id, ceiling.device) for ceiling in measurements.ceilings}
    remaining = [ceiling for ceiling in process.planned if ceiling not in measured]
    if process.done or not remaining:
        return True
    if len(measurements.ceilings) == len(finished):  # another process would not get further
        _leave(measurements, remaining, f"the process ended before it: {process.ending}", listener)
        return True
    lost = [key for key in remaining if measurements.hangs[key[1]] >= HANGS]
    _leave(measurements, lost, f"not tried: the device hung {HANGS} times", listener)
    return len(lost) == len(remaining)


def _leave(
    measurements: Measurements, keys: Sequence[tuple[str, str]], note: str, listener: Listener
) -> None:
    """Add rows without a value for kernels that are no longer tried."""
    for kernel_id, device in keys:
        row = Ceiling(kernel_id, kernel_id, device, None, "", note=note)
        measurements.ceilings.append(row)
        listener.ended(row)


def _argument(
    orders: CeilingOrders, measurements: Measurements, finished: Sequence[tuple[str, str]]
) -> str:
    further = max(0, len(measurements.devices) - 2)
    whole_s = QUICK_S if orders.quick else FULL_S + FURTHER_S * further
    spent_s = 0.0 if measurements.began is None else time.monotonic() - measurements.began
    return json.dumps(
        {
            "quick": orders.quick,
            "wanted": list(orders.wanted),
            "devices": list(orders.devices),
            "done": [list(key) for key in finished],
            "budget_s": max(whole_s - spent_s, LEAST_S),
        }
    )


def with_point(ceiling: Ceiling, point: Point) -> Ceiling:
    """The ceiling with one more size; its value is the best size's."""
    best = min if ceiling.unit in SHORTER_IS_BETTER else max
    curve = (*ceiling.curve, point)
    top = best(curve, key=lambda entry: entry.value)
    return replace(ceiling, curve=curve, value=top.value, best=top.size)
