"""A Machine recorded elsewhere, in a file written by `flatout doctor --json`."""

from __future__ import annotations

from pathlib import Path

from flatout.nouns import documents
from flatout.nouns.decoding import decode
from flatout.nouns.errors import UserError
from flatout.nouns.machine import Machine

SCHEMA = "flatout.doctor/1"
HOW = "record one: flatout doctor --json > machine.json"


def read(path: Path) -> Machine:
    """The Machine in the file. Raises UserError with the fault if it holds none."""
    document = documents.load(path, HOW)
    if not isinstance(document, dict) or not isinstance(document.get("machine"), dict):
        raise UserError(f"{path} holds no machine", HOW)
    schema = document.get("schema")
    if schema != SCHEMA:
        raise UserError(f"{path} is of schema {schema!r}; this flatout reads {SCHEMA!r}", HOW)
    bad_fields: list[str] = []
    machine = decode(Machine, document["machine"], lambda place, value: bad_fields.append(place))
    if machine is None or bad_fields:
        raise UserError(f"{path}: machine.{', machine.'.join(bad_fields[:3])} cannot be read", HOW)
    return machine
