"""The same constant is copied to the device in each step.

## What it sees

A line moves a module's constant (`MEAN.to(device)`) or an object's attribute
(`self.mask.to(device)`) to the device in each step, and the copy takes place each time. So does any
other line that was seen to copy a tensor that is equal in two steps and that training does not
change.

## Why it matters

The bytes are there already, from the step before. The copy starts from memory that is not pinned,
and the host waits for it.

## Evidence

The line, its copies, and for how long the device is idle after them.

## Cure

Move it once before the loop, or register it as a buffer of the module: `model.to(device)` then
moves it too. The gain: the exposed copy and the idle time after it.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer
- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, flow, savings, stalls
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Place, Profile

CHECK = Check(code="COPY005", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that moves a constant."""
    for copy in copies.to_device(profile):
        place = copy.where
        if place is None or copy.calls < 0.5 or copies.built_here(copy):
            continue
        name = _constant(profile, place)
        if not name:
            continue
        idle = sum(sync.idle_ms for sync in stalls.uploads(profile) if sync.where == place)
        saves = savings.within(profile, copy.exposed_ms + idle)
        if not savings.worth(profile, saves):
            continue
        yield Diagnosis(
            title=f"{name} is copied to the device in each step",
            evidence=f"{copies.evidence([copy])}, {units.milliseconds(copy.exposed_ms)} of it "
            f"while nothing computes; the device idle for {units.milliseconds(idle)} after it",
            cure=Cure(f"Move {name} to the device once, before the loop.", _lines(name, place)),
            severity=savings.severity(profile, saves),
            where=str(place),
            saves_ms=saves,
            reason=f"the exposed copy of {units.milliseconds(copy.exposed_ms)} and "
            f"{units.milliseconds(idle)} in which the device waits go",
        )


def _constant(profile: Profile, place: Place) -> str:
    """The constant that this line moves, or empty if none."""
    named = copies.CONSTANT.search(place.source)
    if named is not None:
        return named[1]
    moved = re.search(r"([\w.]+)\.(?:to|cuda)\(", place.source)
    if moved is not None and str(place) in flow.constant_lines(profile):
        return moved[1]
    return ""


def _lines(name: str, place: Place) -> tuple[str, ...]:
    stays = copies.MOVES.sub("", place.source, count=1)
    if name.startswith("self."):
        attribute = name.removeprefix("self.")
        return (
            *savings.lines(
                "in __init__",
                f"{name} = value",
                f'self.register_buffer("{attribute}", value, persistent=False)',
            ),
            *savings.lines(place, place.source, stays),
        )
    return (
        *savings.lines("before the loop", "", f"{name} = {name}.to(device)"),
        *savings.lines(place, place.source, stays),
    )
