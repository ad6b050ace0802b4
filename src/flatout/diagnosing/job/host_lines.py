"""The lines that the host's time goes to: what the checks of host time share."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind, HostLine, total_ms
from flatout.nouns.place import Place
from flatout.nouns.profile import Profile

LEAST_SHARE = 0.04
"""Of a step, from which a line of the user's is worth a finding."""
LEAST_SAMPLES = 5
"""Stacks in which it was seen: fewer may be chance."""
SPARED = 0.9
"""Of what is done every 50 steps, or not at all, instead of in each."""
CALLED = re.compile(r"[A-Za-z_][\w.]*(?=\()")
INNER = re.compile(r"(?<=\w)\.<\w+>.*")
SHOWN = 3
"""Lines that the evidence names."""


@dataclass(frozen=True)
class LineGroup:
    """Lines that one finding is about."""

    lines: tuple[HostLine, ...]
    """The longest first."""
    ms: float
    """Of an undisturbed step."""

    @property
    def where(self) -> Place:
        return self.lines[0].where

    @property
    def samples(self) -> int:
        return sum(line.samples for line in self.lines)


def of(profile: Profile, *kinds: HostKind, loading: bool = False) -> list[HostLine]:
    """The host's lines of these kinds, the longest first; none where no stacks were sampled."""
    return profile.host.of(*kinds, loading=loading) if profile.host is not None else []


def scale(profile: Profile) -> float:
    """From the sampled steps to the undisturbed ones."""
    return profile.host.scale(profile.anatomy.step_ms) if profile.host is not None else 1.0


def by_function(profile: Profile, lines: Iterable[HostLine]) -> list[LineGroup]:
    """Lines of one function of the user's together, the longest first."""
    return _groups(profile, lines, lambda line: (line.where.file, function(line.where)))


def function(where: Place) -> str:
    """Its function; comprehensions and lambdas belong to the one around."""
    return INNER.sub("", where.function)


def by_call(profile: Profile, lines: Iterable[HostLine]) -> list[LineGroup]:
    """The same calls of one package from one function together, the longest first."""
    return _groups(
        profile,
        lines,
        lambda line: (line.where.file, function(line.where), line.package, called(line)),
    )


def called(line: HostLine) -> str:
    """What it calls, without arguments; where that is not a call, its line."""
    name = CALLED.match(line.callee)
    return name[0] if name else str(line.where)


def by_line(profile: Profile, lines: Iterable[HostLine]) -> list[LineGroup]:
    """All that one line does, the longest first."""
    return _groups(profile, lines, lambda line: str(line.where))


def together(profile: Profile, lines: Iterable[HostLine]) -> list[LineGroup]:
    """All of them as one group; none of none."""
    return _groups(profile, lines, lambda _line: None)


def worth(profile: Profile, group: LineGroup) -> bool:
    """Whether a finding should be made of it."""
    large = group.ms >= LEAST_SHARE * profile.anatomy.step_ms
    return large and group.samples >= LEAST_SAMPLES


def saved_ms(profile: Profile, ms: float, spared: float = SPARED) -> float:
    """What the step becomes shorter by without `ms` of host time.

    On an accelerator at most the time for which it waits for the host. spared: share of it that
    the cure saves.
    """
    if savings.accelerated(profile):
        waits = (Kind.WAIT_HOST, Kind.WAIT_SYNC, Kind.WAIT_OTHER)
        ms = min(ms, profile.anatomy.part(*waits))
    return savings.within(profile, spared * ms)


def evidence(profile: Profile, group: LineGroup) -> str:
    """Like "train.py:14 m[i][j] = 1.0: 5.1 ms; ... (312 stacks in 20 steps)"."""
    host = profile.host
    assert host is not None
    factor = scale(profile)
    merged: dict[tuple[str, str], float] = defaultdict(float)
    for line in group.lines:
        merged[str(line.where), line.callee or line.where.source] += factor * line.ms
    longest = sorted(merged.items(), key=lambda item: -item[1])[:SHOWN]
    parts = [f"{where} {text}: {units.milliseconds(ms)}" for (where, text), ms in longest]
    stacks = units.count(group.samples, "stack")
    return f"{'; '.join(parts)} ({stacks} in {units.count(host.steps, 'step')}{_chain(group)})"


def _chain(group: LineGroup) -> str:
    chain = group.lines[0].chain
    return f", called from {' > '.join(map(str, chain[-3:]))}" if chain else ""


def _groups(
    profile: Profile, lines: Iterable[HostLine], key: Callable[[HostLine], object]
) -> list[LineGroup]:
    groups: dict[object, list[HostLine]] = defaultdict(list)
    for line in lines:
        groups[key(line)].append(line)
    factor = scale(profile)
    made = [
        LineGroup(tuple(sorted(group, key=lambda line: -line.ms)), factor * total_ms(group))
        for group in groups.values()
    ]
    return sorted(made, key=lambda group: -group.ms)
