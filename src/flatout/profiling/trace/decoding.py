"""The text of events -> objects, with msgspec if installed, else with json; both agree."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

try:
    from flatout.profiling.trace import decoding_fast as fast
except ImportError:  # msgspec has no wheel for every platform
    fast = None  # type: ignore[assignment]

LARGEST = 2**63 - 1
SCANNER = json.JSONDecoder(strict=False)


@dataclass(slots=True)
class Args:
    """The arguments of an event that are read."""

    external: int = -1
    external_old: int = -1
    correlation: int = -1
    device: int | str = -1
    stream: int | str = -1
    moved: int = -1
    occupancy: float = -1.0
    shapes: bytes = b""
    dtypes: bytes = b""
    concrete: bytes = b""
    sequence: int = -1
    forward_thread: int = -1
    size: int | str = -1
    total: int = -1
    device_type: int = -1
    elements: int = -1
    element_type: bytes = b""
    members: int = -1


@dataclass(slots=True)
class Complete:
    """An event with a begin and a duration."""

    name: str
    cat: str
    pid: int | str
    tid: int | str
    ts: float
    dur: float
    args: Args | None


@dataclass(slots=True)
class Instant:
    """An event without a duration."""

    name: str
    ts: float
    args: Args | None


COMPLETE: set[type] = {Complete}
INSTANTS: set[type] = {Instant}
if fast is not None:
    COMPLETE.add(fast.FastComplete)
    INSTANTS.add(fast.FastInstant)


def decode(text: bytes) -> list[Any] | None:
    """The events of a whole JSON list, or None if they must be decoded one by one."""
    return None if fast is None else fast.decode(text)


def decode_singly(text: str, at: int) -> tuple[list[Any], int, str]:
    """Events of `text` from `at` on, one by one, as far as they go.

    Returns them, where the next one begins, and why it stopped: "more" (the text ends within
    an event, or the event is damaged), "end" (of the list).
    """
    events: list[Any] = []
    while True:
        start = _skip(text, at, " \t\r\n,")
        if start == len(text):
            return events, start, "more"
        if text[start] == "]":
            return events, start, "end"
        try:
            raw, at = SCANNER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return events, start, "more"
        events.append(_event(raw) if isinstance(raw, dict) else None)


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _event(raw: dict[str, Any]) -> Any:
    """The event as an object, or None if events of this kind are not read."""
    phase = raw.get("ph")
    args = raw.get("args")
    arguments = _args(args) if isinstance(args, dict) else None
    if phase == "X":
        return Complete(
            _text(raw.get("name")),
            _text(raw.get("cat")),
            _place(raw.get("pid")),
            _place(raw.get("tid")),
            _number(raw.get("ts"), math.nan),
            _number(raw.get("dur"), 0.0),
            arguments,
        )
    if phase == "i":
        return Instant(_text(raw.get("name")), _number(raw.get("ts"), math.nan), arguments)
    return None


def _args(raw: dict[str, Any]) -> Args:
    return Args(
        external=_whole(raw.get("External id")),
        external_old=_whole(raw.get("external id")),
        correlation=_whole(raw.get("correlation")),
        device=_place(raw.get("device")),
        stream=_place(raw.get("stream")),
        moved=_whole(raw.get("bytes")),
        occupancy=_number(raw.get("est. achieved occupancy %"), -1.0),
        shapes=_json(raw.get("Input Dims")),
        dtypes=_json(raw.get("Input type")),
        concrete=_json(raw.get("Concrete Inputs")),
        sequence=_whole(raw.get("Sequence number")),
        forward_thread=_whole(raw.get("Fwd thread id")),
        size=_place(raw.get("size")),
        total=_whole(raw.get("Total Allocated")),
        device_type=_whole(raw.get("Device Type")),
        elements=_whole(raw.get("In msg nelems")),
        element_type=_json(raw.get("dtype")),
        members=_whole(raw.get("Group size")),
    )


def _text(value: Any) -> str:
    """A value as text, or empty if it is not text. A lone surrogate becomes a question mark."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _place(value: Any) -> int | str:
    if isinstance(value, str):
        return _text(value)
    return _whole(value)


def _whole(value: Any) -> int:
    number = _number(value, -1.0) if not isinstance(value, int) else value
    return int(number) if abs(number) <= LARGEST else -1


def _number(value: Any, default: float) -> float:
    """A finite number, even if it was written as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if math.isfinite(number) else default


def _json(value: Any) -> bytes:
    return b"" if value is None else json.dumps(value).encode()
