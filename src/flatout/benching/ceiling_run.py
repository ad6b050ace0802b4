"""Run the agent's kernels in the user's interpreter and hear what each gives.

A kernel that crashes or hangs costs its own row: the rest runs in a fresh process. What was
measured before an interruption is kept.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flatout.nouns.ceiling import SHORTER_IS_BETTER, Ceiling, Device, Point
from flatout.nouns.errors import UserError
from flatout.probing import conversation
from flatout.probing.conversation import Conversation

QUICK_S, FULL_S = 13.0, 200.0
"""For torch's import and all kernels together: --quick promises 20 s, and the machine is looked at
before.
"""
LEAST_S = 3.0
"""For what is left after a crash, however late it is."""
FURTHER_S = 40.0
"""More for each further device, in full."""
START_S = 180.0
"""For torch to be imported, where that is slow."""
LATE_S = {True: 10.0, False: 60.0}
"""A kernel hangs when it is so much over its time: loading a device's libraries takes a while."""
HUNG = "did not end"
HANGS = 2
"""After so many on one device no more is asked of it."""


class Listener(Protocol):
    """Who is told how it goes."""

    def planned(self, count: int) -> None: ...

    def begun(self, ceiling: Ceiling) -> None: ...

    def point(self, ceiling: Ceiling) -> None: ...

    def ended(self, ceiling: Ceiling) -> None: ...


class Silent:
    """The listener that does nothing."""

    def planned(self, count: int) -> None: ...

    def begun(self, ceiling: Ceiling) -> None: ...

    def point(self, ceiling: Ceiling) -> None: ...

    def ended(self, ceiling: Ceiling) -> None: ...


@dataclass(frozen=True)
class Orders:
    """What is to be measured."""

    quick: bool = False
    wanted: tuple[str, ...] = ()
    """Ids; empty: all that can be measured."""
    devices: tuple[str, ...] = ()
    """cpu, cuda:1; empty: all."""
    folder: str = "."
    """Where the disk is read."""


@dataclass
class Heard:
    """All that the kernels told."""

    torch: str | None = None
    python: str | None = None
    devices: tuple[Device, ...] = ()
    ceilings: list[Ceiling] = field(default_factory=list)
    interrupted: bool = False
    began: float = field(default_factory=time.monotonic)


class _Process:
    """One process of the agent's: its lines, until it ends, hangs or is done."""

    def __init__(self, heard: Heard, listener: Listener, quick: bool) -> None:
        self._heard, self._listener, self._quick = heard, listener, quick
        self.current: Ceiling | None = None
        self.planned: list[tuple[str, str]] = []
        self.done = False
        self.late = False
        self.ending = ""
        self.error: tuple[str, bool] | None = None

    def listen(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Hear all of it; what was under way when it ended is told as a row with its reason."""
        deadline = time.monotonic() + START_S
        with Conversation(command, env) as talk:
            while (said := talk.answer(deadline)) is not None:
                self._take(said)
                if self.done or self.error:
                    return
                if said:
                    deadline = time.monotonic() + self._limit_s(said)
            self.late = talk.running
            self.ending = HUNG if self.late else talk.how_it_ended()
        if self.current is not None:
            self._end(self.ending)
        elif self._heard.torch is None:
            self.error = (f"torch could not be imported: {self.ending}", False)

    def _limit_s(self, said: dict[str, Any]) -> float:
        if "begin" in said:
            self._seconds = float(said.get("seconds") or 0.0)
        return START_S if self.current is None else self._seconds + LATE_S[self._quick]

    _seconds = 0.0

    def _take(self, said: dict[str, Any]) -> None:
        heard = self._heard
        if "error" in said:
            self.error = (str(said["error"]), bool(said.get("torch_missing")))
        elif "devices" in said:
            heard.torch, heard.python = said.get("torch"), said.get("python")
            heard.devices = tuple(Device(**_known(item)) for item in said["devices"])
        elif "planned" in said:
            self.planned = [(str(one), str(device)) for one, device in said["planned"]]
            self._listener.planned(len(heard.ceilings) + len(self.planned))
        elif "lost" in said:
            heard.ceilings.append(
                Ceiling(str(said["lost"]), str(said["lost"]), "", None, "", note=said["note"])
            )
        elif "begin" in said:
            self.current = _begun(said["begin"])
            self._listener.begun(self.current)
        elif "point" in said and self.current is not None:
            size, value = said["point"]
            self.current = with_point(self.current, Point(str(size), float(value)))
            self._listener.point(self.current)
        elif "end" in said and self.current is not None:
            self._end(str(said.get("note") or ""))
        elif "done" in said:
            self.done = True

    def _end(self, note: str) -> None:
        assert self.current is not None
        notes = "; ".join(text for text in (self.current.note, note) if text)
        ended = replace(self.current, note=notes)
        self._heard.ceilings.append(ended)
        self.current = None
        self._listener.ended(ended)


def run(
    python: str,
    orders: Orders,
    listener: Listener | None = None,
    environ: Mapping[str, str] | None = None,
) -> Heard:
    """Measure; what Ctrl-C cut off is missing in the answer, which says so.

    Raises UserError where torch is missing or cannot be imported.
    """
    heard = Heard()
    listener = listener or Silent()
    base = os.environ if environ is None else environ
    prefix = "flatout-bench-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as scratch:
        env = conversation.environment(base, scratch)
        try:
            while not _one_process(python, orders, heard, listener, env):
                pass
        except KeyboardInterrupt:
            heard.interrupted = True
    return heard


def _one_process(
    python: str,
    orders: Orders,
    heard: Heard,
    listener: Listener,
    env: Mapping[str, str],
) -> bool:
    """Whether there is nothing left to measure."""
    done = [(one.id, one.device) for one in heard.ceilings]
    process = _Process(heard, listener, orders.quick)
    command = [python, str(conversation.program("ceilings")), _argument(orders, heard, done)]
    try:
        process.listen(command, env)
    except OSError as error:
        raise UserError(f"{python} cannot be started: {error.strerror or error}") from error
    if process.error is not None:
        _refuse(python, *process.error)
    left = [one for one in process.planned if one not in _keys(heard)]
    if process.done or not left:
        return True
    if len(heard.ceilings) == len(done):  # another process would get no further
        _leave(heard, left, f"the process ended before it: {process.ending}", listener)
        return True
    hung = [one.device for one in heard.ceilings if one.note.endswith(HUNG)]
    lost = [key for key in left if hung.count(key[1]) >= HANGS]
    _leave(heard, lost, f"not tried: the device hung {HANGS} times", listener)
    return len(lost) == len(left)


def _leave(heard: Heard, keys: Sequence[tuple[str, str]], note: str, listener: Listener) -> None:
    """Rows without a value for what is not tried any more."""
    for kernel_id, device in keys:
        row = Ceiling(kernel_id, kernel_id, device, None, "", note=note)
        heard.ceilings.append(row)
        listener.ended(row)


def _argument(orders: Orders, heard: Heard, done: Sequence[tuple[str, str]]) -> str:
    further = max(0, len(heard.devices) - 2)
    whole_s = QUICK_S if orders.quick else FULL_S + FURTHER_S * further
    return json.dumps(
        {
            "quick": orders.quick,
            "wanted": list(orders.wanted),
            "devices": list(orders.devices),
            "folder": os.path.abspath(orders.folder),  # noqa: PTH100 - of a folder that may be gone
            "done": [list(key) for key in done],
            "budget_s": max(whole_s - (time.monotonic() - heard.began), LEAST_S),
        }
    )


def _refuse(python: str, error: str, missing: bool) -> None:
    if missing:
        raise UserError(
            f"torch is not installed in {python}", "flatout env install, or --python PATH"
        )
    raise UserError(f"{python}: torch cannot be used: {error}", "flatout doctor")


def _keys(heard: Heard) -> set[tuple[str, str]]:
    return {(one.id, one.device) for one in heard.ceilings}


def with_point(ceiling: Ceiling, point: Point) -> Ceiling:
    """The ceiling with one size more; its value is that of the best."""
    best = min if ceiling.unit in SHORTER_IS_BETTER else max
    curve = (*ceiling.curve, point)
    top = best(curve, key=lambda one: one.value)
    return replace(ceiling, curve=curve, value=top.value, best=top.size)


def _known(item: dict[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in Device.__dataclass_fields__ if name in item}


def _begun(said: dict[str, Any]) -> Ceiling:
    names = ("id", "title", "device", "unit", "note")
    kernel_id, title, device, unit, note = (str(said.get(name) or "") for name in names)
    return Ceiling(kernel_id, title, device, None, unit, note=note)
