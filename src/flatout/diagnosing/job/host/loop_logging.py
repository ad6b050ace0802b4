"""Logging to a package that runs the loop: a value or two, or one for each weight."""

from __future__ import annotations

import statistics

from flatout.diagnosing.job.host import operator_loops, packages
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns.host_time import total_ms
from flatout.nouns.profile import Profile

MOSTLY = 0.5
"""Share of the lines' time."""
MANY = 12
"""Values a step from which a logging line counts as a loop over weights."""
LARGE = 0.25
"""Share of a step that is much, if the number of logged values is unknown."""


def is_sparing(profile: Profile, group: LineGroup) -> bool:
    """Whether most of these lines' time is a loop-running package's own logging of a few values.

    Scripts report to the package that runs their loop in this way. Each value costs a few
    operators, so their number shows how many values a line logs.
    """
    logging = [
        line
        for line in group.lines
        if packages.logs_for_loop(line.framework or line.package, line.callee)
    ]
    if not logging or total_ms(logging) < MOSTLY * total_ms(group.lines):
        return False
    places = dict.fromkeys(str(line.where) for line in logging)
    values = [count for place in places if (count := _values(profile, place)) is not None]
    return max(values) < MANY if values else group.ms < LARGE * profile.anatomy.step_ms


def _values(profile: Profile, place: str) -> float | None:
    """About how many values a line logs in a step, or None if it calls no operators."""
    calls = [
        operator.calls
        for operator in operator_loops.called_on(profile, place)
        if operator.name not in operator_loops.INNER
    ]
    return statistics.median(calls) if calls else None
