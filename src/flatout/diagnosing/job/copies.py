"""Copies between host and device: what the checks of them share."""

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
"""A tensor made on this very line."""
CONSTANT = re.compile(r"\b([A-Z][A-Z0-9_]+|self\.\w+)\.(to|cuda)\(")
"""A module's constant or an object's attribute that is moved: the same one each time."""
SMALL = 65_536
"""Bytes below which a copy costs its launch and not its bytes."""
ONE_BATCH = 8
"""Tensors that a batch has at most."""


def to_device(profile: Profile) -> list[Copy]:
    """From the host to the device."""
    return [one for one in profile.copies if one.direction == "HtoD"]


def to_host(profile: Profile) -> list[Copy]:
    """From the device to the host."""
    return [one for one in profile.copies if one.direction == "DtoH"]


def pageable(profile: Profile) -> list[Copy]:
    """To the device from memory that is known not to be page-locked, and not small."""
    return [one for one in to_device(profile) if one.pinned is False and _mean(one) >= SMALL]


def small(one: Copy) -> bool:
    """Its bytes are no matter beside its launch."""
    return _mean(one) < SMALL


def of_batches(one: Copy) -> bool:
    """It moves what the loader gave: not a tensor made on the line, not a constant."""
    source = one.where.source if one.where is not None else ""
    return one.calls <= ONE_BATCH and not built_here(one) and not CONSTANT.search(source)


def built_here(one: Copy) -> bool:
    """The line that copies it makes it as well."""
    return one.where is not None and bool(BUILDS.search(one.where.source))


def pinned_ms(profile: Profile, moved: float) -> float | None:
    """What so many bytes take from pinned memory; None: that was not measured."""
    gigabytes = profile.ceiling("copy-host-to-device-pinned")
    return moved / gigabytes / 1e6 if gigabytes else None


def bandwidths(profile: Profile) -> str:
    """For evidence: what was measured of both kinds of memory, or nothing."""
    slow = profile.ceiling("copy-host-to-device-pageable")
    fast = profile.ceiling("copy-host-to-device-pinned")
    if not slow or not fast:
        return ""
    return f" (measured here: pageable {slow:.1f} GB/s, pinned {fast:.1f} GB/s)"


def not_blocking(place: Place | None) -> tuple[str, ...]:
    """The line with `non_blocking=True` in each of its moves."""
    if place is None or not MOVES.search(place.source) or "non_blocking" in place.source:
        return (
            savings.lines(place, "x = x.to(device)", "x = x.to(device, non_blocking=True)")
            if place is None or not place.source
            else ()
        )

    def add(match: re.Match[str]) -> str:
        given = f"{match[2]}, " if match[2].strip() else ""
        return f".{match[1]}({given}non_blocking=True)"

    return savings.lines(place, place.source, MOVES.sub(add, place.source))


def told(found: list[Copy]) -> str:
    """For evidence: 3 copies of 154 MiB together, 6.2 ms a step."""
    calls, moved = sum(one.calls for one in found), sum(one.bytes for one in found)
    spent = units.milliseconds(sum(one.ms for one in found))
    return f"{calls:,.1f} copies of {units.size(moved)} together, {spent} a step"


def _mean(one: Copy) -> float:
    return one.bytes / one.calls if one.calls > 0 else one.bytes
