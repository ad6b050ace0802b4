"""Shared by the checks of host time: the lines that take it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.host_time import HostKind, HostLine, total_ms
from flatout.nouns.place import Place
from flatout.nouns.profile import Profile

LEAST_SHARE = 0.04
"""Share of a step from which a user's line is worth a finding."""
LEAST_SAMPLES = 5
"""Least stacks in which it was seen; fewer may be chance."""
SPARED = 0.9
"""Share saved of work that is done every 50 steps or never, instead of in each step."""
CALLED = re.compile(r"[A-Za-z_][\w.]*(?=\()")
INNER = re.compile(r"(?<=\w)\.<\w+>.*")
SHOWN = 3
"""Lines that the evidence names."""
SELDOM = 0.2
"""Share of the sampled steps up to which something is occasional."""
STACKS_EACH = 4
"""Stacks in each of these steps from which its absence from all others is no chance."""
AGAIN = 3
"""Steps from which something occasional counts as recurring."""
LEAST_STEPS = 3
"""Least sampled steps for a single one to count as few."""
UNSURE = 1 - 1 / 1.1
"""The most that may be promised for work seen once or twice, as a share of the step."""
MOSTLY = 0.5
"""Share of the time of a group, or of a line."""


@dataclass(frozen=True)
class LineGroup:
    """Lines that one finding is about."""

    lines: tuple[HostLine, ...]
    """The longest first."""
    ms: float
    """Milliseconds of an undisturbed step."""

    @property
    def where(self) -> Place:
        return self.lines[0].where

    @property
    def samples(self) -> int:
        return sum(line.samples for line in self.lines)

    @property
    def steps(self) -> frozenset[int] | None:
        """The sampled steps in which any of them was seen, or None if unknown."""
        if any(line.steps is None for line in self.lines):
            return None
        return frozenset(step for line in self.lines for step in line.steps or ())


def of(profile: Profile, *kinds: HostKind, loading: bool = False) -> list[HostLine]:
    """The host's lines of these kinds, longest first; none if no stacks were sampled."""
    return profile.host.of(*kinds, loading=loading) if profile.host is not None else []


def scale(profile: Profile) -> float:
    """The factor from time in sampled steps to time in undisturbed steps."""
    return profile.host.scale(profile.anatomy.step_ms) if profile.host is not None else 1.0


def by_function(profile: Profile, lines: Iterable[HostLine]) -> list[LineGroup]:
    """The lines grouped by the user's function, longest first."""
    return _groups(profile, lines, lambda line: (line.where.file, function(line.where)))


def function(where: Place) -> str:
    """Its function; comprehensions and lambdas belong to the enclosing one."""
    return INNER.sub("", where.function)


def by_call(profile: Profile, lines: Iterable[HostLine]) -> list[LineGroup]:
    """The lines grouped by the same call of one package from one function, longest first."""
    return _groups(
        profile,
        lines,
        lambda line: (line.where.file, function(line.where), line.package, called(line)),
    )


def called(line: HostLine) -> str:
    """What it calls, without arguments, or its line if it is not a call."""
    name = CALLED.match(line.callee)
    return name[0] if name else str(line.where)


def by_line(profile: Profile, lines: Iterable[HostLine]) -> list[LineGroup]:
    """All work grouped by line, longest first."""
    return _groups(profile, lines, lambda line: str(line.where))


def together(profile: Profile, lines: Iterable[HostLine]) -> list[LineGroup]:
    """All lines as one group, or no group if there are none."""
    return _groups(profile, lines, lambda _line: None)


def worth(profile: Profile, group: LineGroup) -> bool:
    """Whether it is worth a finding."""
    large = group.ms >= LEAST_SHARE * profile.anatomy.step_ms
    return large and group.samples >= LEAST_SAMPLES


def saved_ms(profile: Profile, ms: float, spared: float = SPARED) -> float:
    """Milliseconds by which the step becomes shorter without `ms` of host time.

    On an accelerator this is at most its waiting for the host. spared: the share that the cure
    saves.
    """
    if savings.accelerated(profile):
        waits = (Kind.WAIT_HOST, Kind.WAIT_SYNC, Kind.WAIT_OTHER)
        ms = min(ms, profile.anatomy.part(*waits))
    return savings.within(profile, spared * ms)


def occasional(profile: Profile, group: LineGroup) -> int | None:
    """In how many sampled steps it was seen, if they are few and it takes long in each.

    None if it belongs to each step or that is unknown.
    """
    steps, total = group.steps, profile.host.steps if profile.host is not None else 0
    if not steps or total < LEAST_STEPS or len(steps) > max(1, SELDOM * total):
        return None
    return len(steps) if group.samples >= STACKS_EACH * len(steps) else None


def promised(profile: Profile, group: LineGroup, saves_ms: float) -> tuple[float, Severity]:
    """How much of `saves_ms` may be promised, and its severity.

    Little, as a note, if it was seen in one or two of many steps: how often it recurs is unknown.
    """
    times = occasional(profile, group)
    if times is None or times >= AGAIN:
        return saves_ms, savings.severity(profile, saves_ms)
    return min(saves_ms, UNSURE * profile.anatomy.step_ms), Severity.NOTE


def often(profile: Profile, group: LineGroup) -> str:
    """For a title: ", in 2 of 25 steps", or empty if it belongs to each step."""
    times = occasional(profile, group)
    if times is None or profile.host is None:
        return ""
    return f", in {times} of {units.count(profile.host.steps, 'step')}"


def doubt(profile: Profile, group: LineGroup) -> str:
    """For a reason: why less is promised than its lines took, or empty if all is promised."""
    times = occasional(profile, group)
    if times is None or times >= AGAIN:
        return ""
    return ", at most a tenth: seen in so few steps, it may come seldom"


def formatting(profile: Profile) -> list[LineGroup]:
    """Lines that mostly turn tensors into text, with all their time, longest first."""
    lines = of(profile, HostKind.TORCH, HostKind.PYTHON, HostKind.LIBRARY)
    places = {str(line.where) for line in lines if line.formats}
    groups = by_line(profile, (line for line in lines if str(line.where) in places))
    return [
        group
        for group in groups
        if total_ms(line for line in group.lines if line.formats) >= MOSTLY * total_ms(group.lines)
    ]


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
    times = occasional(profile, group)
    few = f"{times} of " if times is not None else ""
    steps = f"{few}{units.count(host.steps, 'step')}"
    return f"{'; '.join(parts)} ({stacks} in {steps}{_chain(group)})"


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
