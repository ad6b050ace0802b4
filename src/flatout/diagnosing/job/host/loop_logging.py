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
"""Values that one line logs in a step, from which it is taken for a loop over weights."""
LARGE = 0.25
"""Share of a step, where it is not known how many values a line logs."""


def is_sparing(profile: Profile, group: LineGroup) -> bool:
    """Whether most of what these lines take is such a package's own way to log a few values.

    That is how scripts report to the package that runs their loop. Each value costs a few
    operators, whose numbers tell how many values a line logs.
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
    """About how many values a line logs in a step; None: it calls no operators."""
    calls = [
        operator.calls
        for operator in operator_loops.called_on(profile, place)
        if operator.name not in operator_loops.INNER
    ]
    return statistics.median(calls) if calls else None
