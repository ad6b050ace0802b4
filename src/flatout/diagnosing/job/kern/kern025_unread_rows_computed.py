"""Linear layers run on many rows of which few are used.

## What it sees

One or more linear layers, with what stands between them (activations, normalisation, dropout), of
whose rows at most a quarter are taken afterwards: by a slice (`out[:, -1]`), a selection or an
index. Rows that anything else takes, that stay in a variable, or that the next step takes count
as used. Logits that a loss leaves out are KERN023's.

## Why it matters

A head that forecasts from every time step and is asked for the last one alone does its products,
and those of its backward pass, as many times as there are steps. Nothing but the rows that are
taken gets a gradient.

## Evidence

The rows that go through the layers, those taken from them and where, and the time of the layers
with their backward pass.

## Cure

Take the rows before the layers: `self.head(states[:, -1])` in place of `self.head(states)[:, -1]`.
Each row of a linear layer comes from the same row of its input: outputs and gradients stay the
same. The gain: the time of the layers with their backward pass, times the share of rows that
nobody takes.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html
- https://docs.pytorch.org/docs/stable/generated/torch.select.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.diagnosing.job.kern import values
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import UnreadRowsSeen

CHECK = Check(code="KERN025", severity=Severity.WARNING, since="0.3.0")
LEAST = 0.02
"""Share of the step that it saves, below which it is not told."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line with such layers."""
    seen = flow.of(profile)
    for row in seen.unread_rows if seen is not None else ():
        assert seen is not None
        if row.rows <= 0:
            continue
        took = values.ms(profile, seen, row.s, row.flops)
        out = 1 - row.used / row.rows
        layers = "a linear layer" if row.products == 1 else f"{row.products} linear layers"
        saving = device_time.of_device(
            profile,
            took * out,
            f"{layers} with the backward pass: {units.milliseconds(took)} on all rows; nobody "
            f"takes {units.share(out)} of the rows",
        )
        if saving.ms < LEAST * profile.anatomy.step_ms or not saving.worth:
            continue
        yield Diagnosis(
            title=f"{layers} computed for {row.rows:,} rows, of which only {row.used:,} are used",
            evidence=f"{row.rows:,} rows go through {layers} in a step, and {row.used:,} are "
            f"taken from what they make{_reading(row)}; the others are discarded; "
            f"{units.milliseconds(took)} with the backward pass",
            cure=_cure(profile, row),
            severity=saving.severity,
            where=row.where,
            saves_ms=saving.ms,
            reason=saving.reason,
            most_ms=took,
        )


def _reading(row: UnreadRowsSeen) -> str:
    return f", first on {row.read_where}" if row.read_where is not None else ""


def _cure(profile: Profile, row: UnreadRowsSeen) -> Cure:
    return Cure(
        "Select the rows (the last position, the masked ones) before the layers instead of slicing "
        "their output: the result and the gradients stay the same.",
        savings.lines(
            row.where,
            flow.line_source(profile, row.where) or "out = head(hidden)",
            "out = head(hidden[:, -1])  # hidden[mask], hidden[index]: the rows that are used",
        ),
    )
