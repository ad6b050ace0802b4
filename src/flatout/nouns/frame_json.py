"""Frames as JSON and back: one document with a versioned schema.

JSON cannot express NaN and infinities. Since they matter in a loss, it is then the string "NaN",
"Infinity" or "-Infinity". Any other number that is not finite is null.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from flatout.nouns.decoding import decode
from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame

NAME = "flatout.monitor"
VERSION = 1
SCHEMA = f"{NAME}/{VERSION}"
LOSS = "loss"
EMPTY: tuple[Any, ...] = (None, [])
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def dump(frame: Frame, lean: bool = False) -> dict[str, Any]:
    """The frame as a document. lean: omit unknown and empty values."""
    return {"schema": SCHEMA, **_raw(frame, lean)}


def load(document: Any) -> Frame:
    """The frame in a document. Raises UserError for another schema, ValueError without a frame."""
    schema = document.get("schema") if isinstance(document, dict) else None
    name, _, version = str(schema).partition("/")
    if name != NAME:
        raise ValueError("this is no frame of flatout monitor")
    if version.isdecimal() and int(version) > VERSION:
        raise UserError(
            f"it is written in {schema}, by a newer flatout than this one ({SCHEMA})",
            "install the same version of flatout on both sides",
        )
    frame = decode(Frame, _restored(document), absent_is_none=True)
    if frame is None:
        raise ValueError("this frame is damaged")
    return frame


def _raw(value: Any, lean: bool, key: str = "") -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return _word(value) if key == LOSS else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = ((item.name, getattr(value, item.name)) for item in dataclasses.fields(value))
        raw = {name: _raw(field, lean, name) for name, field in items}
        return {name: item for name, item in raw.items() if item not in EMPTY} if lean else raw
    if isinstance(value, (tuple, list)):
        return [_raw(item, lean) for item in value]
    return str(value) if isinstance(value, str) else value


def _word(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: NOT_FINITE.get(item, item)
            if key == LOSS and isinstance(item, str)
            else _restored(item)
            for key, item in value.items()
        }
    return [_restored(item) for item in value] if isinstance(value, list) else value
