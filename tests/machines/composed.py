"""Every composed machine with the codes of the findings that must come out of it, once for each.

None was read from a real machine: they are the healthy machines of `healthy.py`, and the changes of
`broken_*.py` that make them broken.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from flatout.nouns.machine import Machine
from machines import (
    broken_driver,
    broken_ordinary,
    broken_shared,
    broken_software,
    broken_system,
    healthy,
)

FAMILIES = (broken_driver, broken_ordinary, broken_shared, broken_software, broken_system)


def machines() -> dict[str, tuple[Machine, tuple[str, ...]]]:
    """Every machine by name, with the codes expected of it."""
    found: dict[str, tuple[Machine, tuple[str, ...]]] = {
        name: (make(), ()) for name, make in healthy.HEALTHY.items()
    }
    for family in FAMILIES:
        twice = found.keys() & family.MACHINES.keys()
        assert not twice, f"the same name twice: {twice}"
        found |= family.MACHINES
    return found


def write(name: str, folder: Path) -> Path:
    """This machine in a file, as `flatout doctor --json` writes it."""
    path = folder / f"{name}.json"
    machine, _ = machines()[name]
    document = {"schema": "flatout.doctor/1", "machine": dataclasses.asdict(machine)}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path
