"""The text of events -> objects: with msgspec; what it refuses, event by event with json."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import msgspec

LARGEST = 2**63 - 1
SCANNER = json.JSONDecoder(strict=False)
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
NONE = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are read; -1 or empty if it has none of that name."""

    external: Whole = msgspec.field(name="External id", default=-1)
    correlation: Whole = -1
    device: Whole | str = -1
    stream: Whole | str = -1
    moved: Whole = msgspec.field(name="bytes", default=-1)
    occupancy: float = msgspec.field(name="est. achieved occupancy %", default=-1.0)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=NONE)
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=NONE)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NONE)
    sequence: Whole = msgspec.field(name="Sequence number", default=-1)
    forward_thread: Whole = msgspec.field(name="Fwd thread id", default=-1)
    size: Whole | str = -1
    total: Whole = msgspec.field(name="Total Allocated", default=-1)
    device_type: Whole = msgspec.field(name="Device Type", default=-1)
    elements: Whole = msgspec.field(name="In msg nelems", default=-1)
    element_type: msgspec.Raw = msgspec.field(name="dtype", default=NONE)
    members: Whole = msgspec.field(name="Group size", default=-1)


class Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """An event with a begin and a duration."""

    name: str = ""
    cat: str = ""
    pid: Whole | str = -1
    tid: Whole | str = -1
    ts: float = math.nan
    dur: float = 0.0
    args: Args | None = None


class Instant(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    """An event without a duration."""

    name: str = ""
    ts: float = math.nan
    args: Args | None = None


# Arrows, processes, counters and the like are not read.
SKIPPED = [
    msgspec.defstruct(f"Skipped{number}", [], tag_field="ph", tag=phase, gc=False)
    for number, phase in enumerate("sftMCNDOBEIRbnecvVpP")
]
KINDS: Any = Complete | Instant
for skipped in SKIPPED:
    KINDS = KINDS | skipped
DECODER = msgspec.json.Decoder(list[KINDS])


def decode(text: bytes) -> list[Any] | None:
    """The events of a whole JSON list, or None if they must be decoded one by one."""
    try:
        return DECODER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def decode_singly(text: str, at: int) -> tuple[list[Any], int, str]:
    """Events of `text` from `at` on, one by one, as far as they go.

    Returns them, where the next one begins, and why it stopped: "more" (the text ends within
    an event, or the event is damaged), "end" (of the list).
    """
    events: list[Any] = []
    while True:
        start = at
        while start < len(text) and text[start] in " \t\r\n,":
            start += 1
        if start == len(text):
            return events, start, "more"
        if text[start] == "]":
            return events, start, "end"
        try:
            raw, at = SCANNER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return events, start, "more"
        events.append(_event(raw) if isinstance(raw, dict) else None)


def _event(raw: dict[str, Any]) -> Any:
    """The event as an object, or None if events of this kind are not read."""
    phase = raw.get("ph")
    args = raw.get("args")
    arguments = None
    if isinstance(args, dict):
        fields = msgspec.structs.fields(Args)
        arguments = Args(
            **{field.name: READ[field.type](args.get(field.encode_name)) for field in fields}
        )
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


READ: dict[Any, Any] = {
    Whole: _whole,
    Whole | str: _place,
    float: lambda value: _number(value, -1.0),
    msgspec.Raw: lambda value: NONE if value is None else msgspec.Raw(json.dumps(value).encode()),
}
"""Reads an argument of each type, whatever the trace has in its place."""
