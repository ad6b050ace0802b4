"""create_graph=True, although nothing differentiates through the gradients.

## What it sees

`torch.autograd.grad` or `backward` with `create_graph=True` in a line of the script, where in two
steps no backward pass goes through the gradients, and their graphs are gone after that. Mostly a
first-order method (Reptile, a penalty that is only logged) written after a second-order one.

## Why it matters

Each operator of such a backward pass is itself recorded, with what it takes: that costs time in
each, and all of it stays in memory until the last gradient is gone.

## Evidence

The line, its calls in a step, and the operators that are recorded in them.

## Cure

Leave out `create_graph=True`; where only some steps use it, ask for it in these. It also retains
the graph of the forward pass: where that is differentiated again, say `retain_graph=True`. The
gain, on a CPU: 1.5 us for each recorded operator; what the memory is worth is not counted.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html
- https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import FlowSeen, GraphUnusedSeen

CHECK = Check(code="LOOP023", severity=Severity.WARNING, since="0.3.0")
RECORD_MS = 0.0015
"""To record an operator of a backward pass, and to free what was recorded."""
MOST = 0.25
"""Of what these passes take, at most."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    seen = flow.of(profile)
    for row in seen.graphs_unused if seen is not None else ():
        assert seen is not None
        took = _record_ms(profile, seen, row)
        saving = device_time.of_step(
            profile,
            took,
            f"recording {units.count(row.operators, 'operator')} of the backward passes takes "
            f"{units.milliseconds(took)}",
        )
        yield Diagnosis(
            title="create_graph=True, but nothing differentiates through the gradients",
            evidence=f"{row.calls:.3g} calls a step record a graph of the gradients, "
            f"{row.operators:,} operators; no backward pass of two followed steps goes through it",
            cure=_cure(row),
            severity=saving.severity if saving.worth else Severity.NOTE,
            where=row.where,
            saves_ms=saving.ms if saving.worth else None,
            reason=saving.reason if saving.worth else "",
        )


def _record_ms(profile: Profile, seen: FlowSeen, row: GraphUnusedSeen) -> float:
    """On a CPU; what it costs beside an accelerator is not known."""
    if savings.accelerated(profile) or seen.operators_s <= 0:
        return 0.0
    share = min(row.s / seen.operators_s, 1.0)
    passes_ms = share * operators.total(profile, profile.operators)
    return min(RECORD_MS * row.operators, MOST * passes_ms)


def _cure(row: GraphUnusedSeen) -> Cure:
    call = "grads = torch.autograd.grad(loss, parameters{})" if row.gives else "loss.backward({})"
    option = ", create_graph=True" if row.gives else "create_graph=True"
    return Cure(
        "Leave out create_graph=True, or ask for it only in the steps that use it; say "
        "retain_graph=True where the same graph is differentiated again.",
        savings.lines(row.where, call.format(option), call.format("")),
    )
