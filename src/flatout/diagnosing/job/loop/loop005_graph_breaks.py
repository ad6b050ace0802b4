"""Compiled code falls back to Python in the middle: graph breaks.

## What it sees

Places where torch.compile had to end a graph and continue in Python, as torch reports them.

## Why it matters

Operators on both sides cannot be fused, each piece is called separately with its own guards, and
CUDA graphs are recorded in pieces or not at all.

## Cure

Move the construct out of the compiled function: `print`, `.item()`, calls into libraries that are
not traced, branches on tensor values (`torch.where`). `torch.compile(model, fullgraph=True)` fails
at the first one and says where.

## References

- https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html#graph-breaks
- https://docs.pytorch.org/docs/stable/generated/torch.compile.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.loop import compiling, loops
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP005", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all of them."""
    breaks = profile.seen.graph_breaks if profile.seen is not None else ()
    if not breaks:
        return
    yield Diagnosis(
        title=f"torch.compile broke the graph: {units.count(len(breaks), 'reason')}",
        evidence=compiling.evidence(breaks),
        cure=Cure(
            "Move what it names out of the compiled function; fullgraph=True shows where.",
            savings.lines(
                None, "model = torch.compile(model)", "model = torch.compile(model, fullgraph=True)"
            ),
        ),
        where=next((line for text in breaks if (line := loops.line_in(text))), None),
    )
