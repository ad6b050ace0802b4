"""Host time of two profiles: parts that both have, and lines whose time changed."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator

from flatout.nouns import units
from flatout.nouns.anatomy import HOST_PARTS, Anatomy, Kind, Part
from flatout.nouns.host_time import HostKind, HostLine
from flatout.nouns.profile import Profile
from flatout.reporting import plain
from flatout.reporting.profile import host

FINER = tuple(kind for kind in HOST_PARTS if kind is not Kind.PYTHON)
"""Known only if stacks were sampled; otherwise they are one part, "Python and dispatch"."""
KINDS = {
    Kind.USER: (HostKind.PYTHON,),
    Kind.LIBRARY: (HostKind.LIBRARY,),
    Kind.BLOCKED: (HostKind.WAITING,),
    Kind.WAIT_HOST: host.OWN,
}
"""Whose lines explain the change of a part."""
CODES = {
    code: (Kind.WAIT_HOST, Kind.PYTHON, *kinds)
    for code, kinds in {
        "HOST003": (Kind.COLLECTING,),
        "HOST006": (Kind.DISPATCH,),
        "HOST008": (Kind.DISPATCH,),
        "HOST009": (Kind.USER,),
        "HOST010": (Kind.LIBRARY,),
        "HOST011": (Kind.DISPATCH, Kind.USER),
        "HOST012": (Kind.BLOCKED,),
        "DATA010": (Kind.USER, Kind.LIBRARY),
    }.items()
}
"""The parts that these findings are about."""
AT_MOST = 3
"""The most lines that are named for one part."""
FOLDED = (
    "one was recorded without lines of the host: all that is between operators is compared as "
    "one part"
)

LineKey = tuple[str, str]
"""A line's function and text: its number changes with every edit above it."""


def folded(before: Profile, after: Profile) -> tuple[Profile, Profile] | None:
    """Both with the time between operators as one part, or None if their parts match anyway."""
    anatomies = before.anatomy, after.anatomy
    finer = [anatomy.part(*FINER) > 0 for anatomy in anatomies]
    if finer[0] == finer[1] or not any(anatomy.part(Kind.PYTHON) for anatomy in anatomies):
        return None
    return _folded(before), _folded(after)


def _folded(profile: Profile) -> Profile:
    anatomy: Anatomy = profile.anatomy
    parts = [part for part in anatomy.parts if part.kind not in HOST_PARTS]
    parts.append(Part(Kind.PYTHON, anatomy.part(*HOST_PARTS)))
    ordered = tuple(sorted(parts, key=lambda part: -part.ms))
    return dataclasses.replace(profile, anatomy=dataclasses.replace(anatomy, parts=ordered))


def reasons(kind: Kind, before: Profile, after: Profile, least_ms: float) -> Iterator[str]:
    """Lines whose time changed by `least_ms` or more: "train.py:14 m[i][j] = 1.0: 5.1 ms -> 0"."""
    if before.host is None or after.host is None or kind not in KINDS:
        return
    earlier, later = _by_line(before, kind), _by_line(after, kind)
    changes = []
    for key in {**earlier, **later}:
        before_ms, after_ms = earlier.get(key, ("", 0.0))[1], later.get(key, ("", 0.0))[1]
        text = (later.get(key) or earlier[key])[0]
        changes.append((abs(after_ms - before_ms), text, before_ms, after_ms))
    for change_ms, text, before_ms, after_ms in sorted(changes, reverse=True)[:AT_MOST]:
        if change_ms >= least_ms:
            times = f"{units.milliseconds(before_ms)} -> {units.milliseconds(after_ms)}"
            yield f"{text}: {times}"


def _by_line(profile: Profile, kind: Kind) -> dict[LineKey, tuple[str, float]]:
    """The words for a line, and its milliseconds in an undisturbed step."""
    factor = host.scale(profile)
    lines: dict[LineKey, list[HostLine]] = defaultdict(list)
    for line in profile.host.of(*KINDS[kind]) if profile.host is not None else ():
        place = line.where
        lines[place.function, place.source or str(place)].append(line)
    return {
        key: (_words(max(group, key=lambda line: line.ms)), factor * sum(row.ms for row in group))
        for key, group in lines.items()
    }


def _words(line: HostLine) -> str:
    text = line.callee or line.where.source
    return plain.one_line(f"{line.where} {text}".strip())
