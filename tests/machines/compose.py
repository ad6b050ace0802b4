"""Write the composed machines `tests/machines/*.json` from the healthy ones and their broken kin.

    python tests/machines/compose.py

Each file is what `flatout doctor --json` writes of such a machine, facts that are None left out,
and `expected`: the codes that must come out. `tests/diagnosing/test_machines.py` reads them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))

from flatout.nouns.machine import Machine  # noqa: E402
from machines import (  # noqa: E402
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
    found = {name: (make(), ()) for name, make in healthy.HEALTHY.items()}
    for family in FAMILIES:
        twice = found.keys() & family.MACHINES.keys()
        assert not twice, f"the same name twice: {twice}"
        found |= family.MACHINES
    return found


def text(machine: Machine, expected: tuple[str, ...]) -> str:
    """The file's content."""
    document = {
        "schema": "flatout.doctor/1",
        "machine": known(dataclasses.asdict(machine)),
        "expected": sorted(expected),
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def known(value: Any) -> Any:
    """Without what is None."""
    if isinstance(value, dict):
        return {key: known(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [known(item) for item in value]
    return value


def main() -> None:
    wanted = {FOLDER / f"{name}.json": text(*found) for name, found in machines().items()}
    for stale in set(FOLDER.glob("*.json")) - set(wanted):
        stale.unlink()
    for path, content in wanted.items():
        path.write_text(content, encoding="utf-8", newline="\n")
    sys.stdout.write(f"{len(wanted)} machines\n")


if __name__ == "__main__":
    main()
