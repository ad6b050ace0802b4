"""Another thread of the process runs Python and takes the interpreter from the one that trains.

## What it sees

Another thread of the process runs Python for 15 % of the step or more, while the training thread
waits, without CPU use, for 4 % of it or more. The thread of a package that the training thread
itself calls in each step, such as a writer of logs, is reported with these calls instead (HOST010),
since they give it its work.

## Why it matters

Python runs one thread at a time. A thread that computes in Python releases the interpreter only
every 5 ms. Each operator call may wait that long, so the time between operators then says nothing
about dispatch (HOST008).

## Cure

Move the work into a process of its own (multiprocessing), or make the thread wait for events
instead of polling. The gain: the training thread's wait, at most the other thread's CPU time.

## References

- https://docs.python.org/3/library/sys.html#sys.setswitchinterval
- https://docs.python.org/3/library/multiprocessing.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.diagnosing.job.host import threads
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(
    code="HOST013", severity=Severity.WARNING, since="0.2.0", hides=("HOST008", "HOST012")
)
LEAST_CPU = 0.15
"""Share of the step that the other thread must run."""
RELIEVED = 0.1
"""Share of the step; sampled steps this much shorter were spared waiting for the interpreter."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the busiest thread."""
    host, step_ms = profile.host, profile.anatomy.step_ms
    if host is None or not host.idle_known or not host.threads or step_ms <= 0:
        return
    thread = host.threads[0]
    if threads.feeding(profile, thread) is not None:
        return
    relieved_ms = max(0.0, step_ms - host.step_ms)
    factor = 1.0 if relieved_ms > RELIEVED * step_ms else host_lines.scale(profile)
    waited_ms, cpu_ms = factor * host.waited_ms, factor * thread.cpu_ms
    lost_ms = min(waited_ms, cpu_ms) + (relieved_ms if factor == 1.0 else 0.0)
    saves = host_lines.saved_ms(profile, lost_ms)
    if cpu_ms < LEAST_CPU * host.step_ms or saves < host_lines.LEAST_SHARE * step_ms:
        return
    line = str(thread.where) if thread.where is not None else None
    place = f" at {line}" if line else f" in {thread.package}" if thread.package else ""
    yield Diagnosis(
        title=f'thread "{thread.name}" takes the interpreter from the training thread'[:100],
        evidence=f"it runs {units.milliseconds(cpu_ms)} of CPU time a step{place}; "
        f"the training thread waits {units.milliseconds(waited_ms)} without CPU use"
        + _relieved(host.step_ms, step_ms, factor),
        cure=Cure(
            "Move that work into a process of its own, or let the thread wait for events instead "
            "of polling.",
            savings.lines(line, "", "multiprocessing.Process(target=work, daemon=True).start()"),
        ),
        severity=savings.severity(profile, saves),
        where=line,
        saves_ms=saves,
        reason=f"nine tenths of the {units.milliseconds(lost_ms)} in which the training thread "
        "waits, at most what the other one runs",
    )


def _relieved(sampled_ms: float, step_ms: float, factor: float) -> str:
    if factor != 1.0:
        return ""
    before, after = units.milliseconds(step_ms), units.milliseconds(sampled_ms)
    return (
        f"; while stacks were sampled, and Python handed the interpreter over more often, "
        f"a step took {after} instead of {before}"
    )
