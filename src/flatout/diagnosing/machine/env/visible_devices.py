"""CUDA_VISIBLE_DEVICES as CUDA reads it: from left to right, up to the first invalid entry.

The rules are those of NVIDIA's programming guide and of torch's own reader of the variable: an
entry is a number (digits at its start count), the start of a GPU's UUID or a MIG device; -1 ends
the list; the same entry twice leaves no GPU at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flatout.nouns.gpu import Gpu

NAME = "CUDA_VISIBLE_DEVICES"
_NOTHING = ("", "nodevfiles", "none", "void")


@dataclass(frozen=True)
class Reading:
    """What CUDA makes of the variable."""

    visible: tuple[str, ...]
    """Entries that CUDA accepts."""
    wrong: str | None = None
    """The entry at which CUDA stops, or None if no entry is known to be wrong."""
    reason: str = ""
    usable: tuple[str, ...] = ()
    """All entries that name a GPU, including those after the wrong one."""


def hides_all(value: str) -> bool:
    """Whether the value explicitly hides all GPUs."""
    first = value.split(",")[0].strip().strip("\"'").lower()
    return first in _NOTHING or re.match(r"-\d", first) is not None


def read(value: str, gpus: Sequence[Gpu]) -> Reading:
    """What CUDA sees of `gpus`, the GPUs that the driver lists."""
    entries = [entry.strip() for entry in value.split(",")]
    usable = tuple(dict.fromkeys(entry for entry in entries if not _problem(entry, gpus)))
    visible: list[str] = []
    for entry in entries:
        if _key(entry) in map(_key, visible):
            return Reading((), entry, "it stands there twice, and then CUDA shows none", usable)
        reason = _problem(entry, gpus)
        if reason:
            return Reading(tuple(visible), entry, reason, usable)
        visible.append(entry)
    return Reading(tuple(visible), usable=usable)


def _key(entry: str) -> str:
    number = re.match(r"\+?(\d+)", entry)
    return str(int(number[1])) if number else entry.lower()


def _problem(entry: str, gpus: Sequence[Gpu]) -> str:
    """Why the entry names no GPU, or empty if it names one or that is unknown."""
    if re.match(r"\+?\d", entry):
        return _index_problem(int(_key(entry)), gpus)
    if entry.lower().startswith("gpu-"):
        return _uuid_problem(entry, gpus)
    if entry.lower().startswith("mig-"):
        return _mig_problem(entry, gpus)
    if re.match(r"-\d", entry):
        return "a negative number ends the list"
    return "it is neither a number nor a UUID"


def _index_problem(index: int, gpus: Sequence[Gpu]) -> str:
    if index < len(gpus) or any(gpu.mig for gpu in gpus):
        return ""
    return f"the last GPU is {len(gpus) - 1}"


def _uuid_problem(entry: str, gpus: Sequence[Gpu]) -> str:
    uuids = [gpu.uuid.lower() for gpu in gpus if gpu.uuid]
    matches = sum(uuid.startswith(entry.lower()) for uuid in uuids)
    if matches == 1 or len(uuids) < len(gpus):
        return ""
    return "several UUIDs begin like it" if matches else "no GPU here has this UUID"


def _mig_problem(entry: str, gpus: Sequence[Gpu]) -> str:
    if all(gpu.mig is False for gpu in gpus):
        return "no GPU here is in MIG mode"
    if all(gpu.mig is False or (gpu.mig and not gpu.mig_slices) for gpu in gpus):
        return "no MIG device exists here"
    parent = entry[4:].partition("/")[0]
    return _uuid_problem(parent, gpus) if parent.lower().startswith("gpu-") else ""
