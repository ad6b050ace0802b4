"""Events with msgspec: only events that are read become objects."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
NONE = msgspec.Raw(b"")


class FastArgs(msgspec.Struct, gc=False):
    """See decoding.Args."""

    external: Whole = msgspec.field(name="External id", default=-1)
    external_old: Whole = msgspec.field(name="external id", default=-1)
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


class FastComplete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """See decoding.Complete."""

    name: str = ""
    cat: str = ""
    pid: Whole | str = -1
    tid: Whole | str = -1
    ts: float = math.nan
    dur: float = 0.0
    args: FastArgs | None = None


class FastInstant(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    """See decoding.Instant."""

    name: str = ""
    ts: float = math.nan
    args: FastArgs | None = None


# Arrows, processes, counters and the like are not read.
SKIPPED = [
    msgspec.defstruct(f"Skipped{number}", [], tag_field="ph", tag=phase, gc=False)
    for number, phase in enumerate("sftMCNDOBEIRbnecvVpP")
]
KINDS: Any = FastComplete | FastInstant
for skipped in SKIPPED:
    KINDS = KINDS | skipped
DECODER = msgspec.json.Decoder(list[KINDS])


def decode(text: bytes) -> list[Any] | None:
    """The events of a whole JSON list, or None if it has an unexpected form."""
    try:
        return DECODER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
