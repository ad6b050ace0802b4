"""Shared by the checks of copies between host and device."""

from __future__ import annotations

import re

from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.profile import Copy, Place, Profile

MOVES = re.compile(r"\.(to|cuda)\(([^()]*)\)")
BUILDS = re.compile(
    r"torch\.(tensor|as_tensor|zeros|ones|full|empty|arange|linspace|eye|rand|randn|randint|randperm"
    r"|tril|triu|from_numpy)\("
)
"""A tensor made on this line."""
CONSTANT = re.compile(r"\b([A-Z][A-Z0-9_]+|self\.\w+)\.(to|cuda)\(")
"""A move of a module's constant or an object's attribute: the same one each time."""
SMALL = 65_536
"""Bytes below which a copy's cost is its launch, not its bytes."""
ONE_BATCH = 8
"""The most tensors in a batch."""


def to_device(profile: Profile) -> list[Copy]:
    """Copies from the host to the device."""
    return [copy for copy in profile.copies if copy.direction == "HtoD"]


def to_host(profile: Profile) -> list[Copy]:
    """Copies from the device to the host."""
    return [copy for copy in profile.copies if copy.direction == "DtoH"]


def pageable(profile: Profile) -> list[Copy]:
    """Copies to the device that are not small, from memory known not to be page-locked."""
    return [copy for copy in to_device(profile) if copy.pinned is False and _mean(copy) >= SMALL]


def of_batches(copy: Copy) -> bool:
    """Whether it moves a loader's batch: neither a tensor made on the line nor a constant."""
    source = copy.where.source if copy.where is not None else ""
    return copy.calls <= ONE_BATCH and not built_here(copy) and not CONSTANT.search(source)


def built_here(copy: Copy) -> bool:
    """Whether the line that copies the tensor also makes it."""
    return copy.where is not None and bool(BUILDS.search(copy.where.source))


def pinned_ms(profile: Profile, moved: float) -> float | None:
    """Milliseconds for this many bytes from pinned memory, or None if not measured."""
    gigabytes = profile.ceiling("copy-host-to-device-pinned")
    return moved / gigabytes / 1e6 if gigabytes else None


def bandwidths(profile: Profile) -> str:
    """For the evidence: the speeds measured for both kinds of memory, or empty."""
    slow = profile.ceiling("copy-host-to-device-pageable")
    fast = profile.ceiling("copy-host-to-device-pinned")
    if not slow or not fast:
        return ""
    return f" (measured here: pageable {slow:.1f} GB/s, pinned {fast:.1f} GB/s)"


def not_blocking(place: Place | None) -> tuple[str, ...]:
    """The line, changed to have `non_blocking=True` in each of its moves."""
    if place is None or not MOVES.search(place.source) or "non_blocking" in place.source:
        return (
            savings.lines(place, "x = x.to(device)", "x = x.to(device, non_blocking=True)")
            if place is None or not place.source
            else ()
        )

    def add(match: re.Match[str]) -> str:
        arguments = f"{match[2]}, " if match[2].strip() else ""
        return f".{match[1]}({arguments}non_blocking=True)"

    return savings.lines(place, place.source, MOVES.sub(add, place.source))


def evidence(copies: list[Copy]) -> str:
    """For the evidence: 3 copies of 154 MiB together, 6.2 ms a step."""
    calls, moved = sum(copy.calls for copy in copies), sum(copy.bytes for copy in copies)
    spent = units.milliseconds(sum(copy.ms for copy in copies))
    return f"{calls:,.1f} copies of {units.size(moved)} together, {spent} a step"


def _mean(copy: Copy) -> float:
    return copy.bytes / copy.calls if copy.calls > 0 else copy.bytes
