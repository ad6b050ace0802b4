"""A broken machine of the software's table, by its name."""

from __future__ import annotations

from typing import Any

from machines.broken_software import MACHINES
from machines.healthy import changed


def broken(name: str, **changes: Any) -> Any:
    """A broken machine by its name, with other facts."""
    return changed(MACHINES[name][0], **changes)
