"""Long rows are sorted whole though only their first few columns are read.

## What it sees

`sort` or `argsort` of rows of 64 elements or more, of whose result everything that reads it takes a
slice at one end that is at most a quarter of the row, or a single column: the k nearest neighbours,
the hardest samples, a threshold. The data flow of a step knows what is read. Told where these sorts
take 4 % of the step or more. A sort that is kept, gathered from, copied to Python or asked to be
stable is not told.

## Why it matters

A full sort takes n log n comparisons for each row and writes all of it, values and indices. The k
largest or smallest are found in one pass, with a sort of k elements.

## Evidence

The line, the length of the rows, the columns that are read, and the time of the sorts.

## Cure

`torch.topk(x, k, largest=False)` for the smallest in order, `sorted=False` where their order does
not matter; `torch.kthvalue` for a single column. Equal elements may come in another order. The
gain: half of the sorts' time, three quarters where at most a sixteenth of each row is read.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.topk.html
- https://docs.pytorch.org/docs/stable/generated/torch.kthvalue.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.diagnosing.job.kern import values
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import SortSeen

CHECK = Check(code="KERN026", severity=Severity.WARNING, since="0.3.0")
LEAST = 0.04
"""Share of the step in these sorts."""
NARROW = 16
"""A row is this many times as long as what is read of it, where most of the time is spared."""
SPARED, SPARED_NARROW = 0.5, 0.75
SORTS = r"aten::(sort|argsort)"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that sorts."""
    seen = flow.of(profile)
    for row in seen.sorts if seen is not None else ():
        assert seen is not None
        took = values.recorded_ms(profile, seen, row.where, row.s, SORTS)
        spared = SPARED_NARROW if NARROW * row.read <= row.length else SPARED
        saving = device_time.of_device(
            profile,
            spared * took,
            f"{units.share(spared)} of {units.milliseconds(took)} in sorts: finding {row.read} of "
            f"{row.length:,} takes one pass, sorting all {row.length:,} many",
        )
        if took >= LEAST * profile.anatomy.step_ms and saving.worth:
            yield Diagnosis(
                title=f"rows of {row.length:,} are sorted whole, of which {_columns(row)} read: "
                f"{units.milliseconds(took)}",
                evidence=f"{units.count(row.calls, 'sort')} a step of {row.shape} at {row.where}; "
                f"of each row {_columns(row)} read, and nothing else",
                cure=_cure(profile, row),
                severity=saving.severity,
                where=row.where,
                saves_ms=saving.ms,
                reason=saving.reason,
                most_ms=took,
            )


def _columns(row: SortSeen) -> str:
    if row.kind == "single":
        return "a single column is"
    return f"the {row.kind} {row.read} columns are" if row.read > 1 else f"the {row.kind} column is"


def _cure(profile: Profile, row: SortSeen) -> Cure:
    source = flow.line_source(profile, row.where)
    if row.kind == "single":
        text = "Select that column: torch.kthvalue finds it without sorting the rest."
        change = "values, indices = x.kthvalue(k, dim=dim)  # k counts from 1, from the smallest"
    else:
        side = "largest" if row.largest else "smallest"
        text = f"Select the {row.read} {side} with torch.topk; sorted=False if order is no matter."
        change = f"values, indices = torch.topk(x, {row.read}, dim=dim, largest={row.largest})"
    return Cure(text, savings.lines(row.where, source, change))
