"""Python itself is traced while the job trains: its allocations or its lines.

## What it sees

`tracemalloc` that traces, a function set by `sys.settrace`, a debugger or a coverage tool of
`sys.monitoring` (Python 3.12 on), in the process that trains.

## Why it matters

tracemalloc notes the stack of each allocation, a trace function is called at each line. Whatever
runs in Python takes longer, the calls of operators included, and snapshots take longer still: all
of it looks like a slow program.

## Cure

Switch it off once the question is answered, or on for a few steps only.

## References

- https://docs.python.org/3/library/tracemalloc.html
- https://docs.python.org/3/library/sys.html#sys.settrace
- https://docs.python.org/3/library/sys.monitoring.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time
from flatout.nouns import units
from flatout.nouns.anatomy import CALLING, Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP020", severity=Severity.WARNING, since="0.2.0", hides=("HOST008",))
SAVED = 0.2
"""Cautious share of the time in Python."""
OFF = {
    "tracemalloc": "tracemalloc.stop()",
    "sys.settrace": "sys.settrace(None)",
}


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the process."""
    tracers = profile.seen.tracers if profile.seen is not None else ()
    if profile.seen is None or not tracers:
        return
    python_ms = profile.anatomy.part(*CALLING, Kind.USER, Kind.LIBRARY)
    saving = device_time.of_step(
        profile,
        python_ms * SAVED,
        f"Python takes {units.milliseconds(python_ms)}, of which {units.share(SAVED)} is taken to "
        "go (a cautious constant)",
    )
    lines = tuple(line for name, line in OFF.items() if any(name in each for each in tracers))
    yield Diagnosis(
        title=f"Python is traced while it trains: {', '.join(tracers)}",
        evidence=f"{units.milliseconds(python_ms)} of a step of "
        f"{units.milliseconds(profile.anatomy.step_ms)} are Python's, and each of its "
        f"{'allocations' if 'tracemalloc' in tracers[0] else 'lines'} is traced",
        cure=Cure("Switch it off once the question is answered, or on for a few steps.", lines),
        where=profile.seen.tracers_where,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
