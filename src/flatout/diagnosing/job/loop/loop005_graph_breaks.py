"""Compiled code falls back to Python in the middle: graph breaks.

## What it sees

Places where torch.compile had to stop a graph and go on in Python, as torch tells them.

## Why it matters

What stands on both sides cannot be fused, each piece is called by itself with its guards checked
anew, and CUDA graphs are recorded in pieces or not at all.

## Evidence

The reasons as torch words them, with the line where it names one.

## Cure

Take the construct out of the compiled function: `print`, `.item()`, calls into libraries that are
not traced, branches on tensor values (`torch.where`). `torch.compile(model, fullgraph=True)`
fails at the first one and says where.

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
            "Take what it names out of the compiled function; with fullgraph it says where.",
            savings.lines(
                None, "model = torch.compile(model)", "model = torch.compile(model, fullgraph=True)"
            ),
        ),
        where=next((line for text in breaks if (line := loops.line_in(text))), None),
    )
