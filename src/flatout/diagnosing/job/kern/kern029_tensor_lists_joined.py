"""Hundreds of tensors that a list keeps from step to step are joined in each step.

## What it sees

`torch.stack` or `torch.cat` of 256 tensors or more in a step, at least half of them from before the
step: a queue of negatives as a deque of rows, a replay buffer as a list of transitions. The data
flow of a step knows which tensors were there before. What a loop of the same step has just
computed, weights, and what a loader gives do not count. Told where the line takes 4 % of the step
or more.

## Why it matters

Each tensor costs some hundred nanoseconds of Python and as much of torch each time that it is
joined, however small it is, and all of them are copied though few have changed.

## Evidence

The line, the number of tensors, their shape, those from before the step, and the time.

## Cure

One tensor, allocated once. A ring buffer is written in place, and read without any copy:
`buffer[at : at + n] = rows`; a sample is one `buffer[indices]`. The gain: the line's time, less a
copy of the joined bytes.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.stack.html
- https://docs.pytorch.org/docs/stable/generated/torch.cat.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import flow, host_lines, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import JoinSeen

CHECK = Check(code="KERN029", severity=Severity.WARNING, since="0.3.0")
LEAST = 0.04
"""Share of the step that the line takes."""
SPARED = 0.9
JOINS = r"aten::(stack|cat)"
COPIED_MS = 0.1e-6
"""For each byte that one indexed copy reads, as at 10 GB/s."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that joins."""
    seen = flow.of(profile)
    for row in seen.joins if seen is not None else ():
        took = _ms(profile, row)
        copy = min(row.bytes * COPIED_MS, took)
        saves = host_lines.saved_ms(profile, took - copy, SPARED)
        if took >= LEAST * profile.anatomy.step_ms and savings.worth(profile, saves):
            yield Diagnosis(
                title=f"{row.tensors:,} tensors of a list are joined in each step: "
                f"{units.milliseconds(took)}",
                evidence=f"{units.count(row.calls, 'call')} a step at {row.where} of up to "
                f"{row.tensors:,} tensors of {row.shape or 'one number'} each, {row.older:,} of "
                "them from before the step",
                cure=_cure(profile, row),
                severity=savings.severity(profile, saves),
                where=row.where,
                saves_ms=saves,
                reason=f"{units.share(SPARED)} of {units.milliseconds(took)} on this line, less "
                f"{units.milliseconds(copy)} for copying as much with one call",
                most_ms=took,
            )


def _ms(profile: Profile, row: JoinSeen) -> float:
    """Of the host on its line, with the Python that walks the list where that was sampled."""
    joins = [
        operator
        for operator in operators.called(profile, JOINS)
        if str(operator.where) == row.where and not operator.backward
    ]
    recorded = sum(operator.host_ms for operator in joins)
    lines = profile.host.lines if profile.host is not None else ()
    spent = sum(line.ms for line in lines if str(line.where) == row.where and not line.loading)
    sampled = spent * host_lines.scale(profile)
    return min(max(recorded, sampled), profile.anatomy.step_ms)


def _cure(profile: Profile, row: JoinSeen) -> Cure:
    return Cure(
        "Keep the rows in one preallocated tensor, a ring buffer: write new rows in place, and "
        "read it, or a sample of it by indices, without joining anything.",
        savings.lines(
            row.where,
            flow.line_source(profile, row.where),
            f"buffer = torch.empty({row.tensors}, *shape)  # once",
            "buffer[(at + torch.arange(len(rows))) % len(buffer)] = rows; at += len(rows)",
            "rows = buffer  # a sample: buffer[indices]",
        ),
    )
