"""A job has ended with an error.

## What it sees

The exit code of the program is not 0, or `flatout run` itself was killed. What `flatout explain`
recognises in its last lines is the evidence. Ctrl-C is not an error, whatever the program's exit
code. If a program trains with the library, without `flatout run`, it is not known how it ended.

## Why it matters

A run that failed at night has trained nothing since.

## Cure

The cure for the recognised cause, else the last lines of the program's own output.

## References

- https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html
- https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress

from flatout.nouns.errors import INTERRUPTED
from flatout.nouns.finding import Cure, Severity
from flatout.watching.rules import Breach, JobHistory, Rule, View

RULE = Rule(code="END001", severity=Severity.ERROR, since="0.2.0")
FINE = (0, INTERRUPTED)
KILLED = 137
NEARLY_ALL = 0.95


def check(view: View) -> Iterator[Breach]:
    """One breach for a job that failed."""
    job = view.job
    if job is None or job.ended_s is None or job.exit_code in FINE:
        return
    if job.exit_code is None:
        yield Breach(
            title="the job ended together with its flatout run",
            evidence="flatout run was killed before it could report an exit code",
            cure=Cure("Find out what ended it: a time limit, the machine's memory, another user."),
            since_s=job.ended_s,
        )
        return
    how = f"exit code {job.exit_code}"
    if job.exit_code > 128:
        with suppress(ValueError):
            number = job.exit_code - 128
            how = f"ended by signal {number} ({signal.Signals(number).name})"
    memory = _memory(view, job) if job.exit_code == KILLED else None
    if job.explained is not None and memory is None:
        title, cause, cures = job.explained
        yield Breach(
            title=f"the job failed: {title}"[:100],
            evidence=f"{how}; {cause}",
            cure=Cure(" ".join(cures[:2]) or "See the last lines of its output."),
            since_s=job.ended_s,
        )
        return
    yield Breach(
        title="the job ran out of memory and was killed" if memory else f"the job failed: {how}",
        evidence=f"{how}; {memory}" if memory else how,
        cure=Cure("Use less memory: fewer loader workers, smaller caches, a smaller batch.")
        if memory
        else Cure("See the last lines of its output. flatout explain reads them from a file."),
        since_s=job.ended_s,
    )


def _memory(view: View, job: JobHistory) -> str | None:
    """Evidence that nearly all memory was used in the job's last minute, or None."""
    end = job.ended_s or view.now_s
    shares = [
        sample.memory_used_bytes / sample.memory_bytes
        for sample in view.machine
        if end - 60 < sample.time_s <= end + 1
        and sample.memory_used_bytes is not None
        and sample.memory_bytes
    ]
    if not shares or max(shares) < NEARLY_ALL:
        return None
    return f"{max(shares):.0%} of the memory was used in its last minute"
