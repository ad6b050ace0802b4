"""A model or an operator is computed in each step, and nothing reads its result.

## What it sees

Operators, mostly those of a whole forward pass, whose results reach neither a backward pass, nor
the host (`item`, `numpy`, `print`), nor a variable that outlives the step. The same for derivatives
by `torch.autograd.grad`, such as a Laplacian that is only printed now and then. The data flow of
two consecutive steps is followed; anything that the second takes from the first counts as read.

## Why it matters

The work is wasted. A second forward pass costs a third of a training step, and in training mode it
moves the statistics of batch norm twice.

## Cure

Remove the call, or make it only in the steps that read its result. If a later line needs it, use
the result of the first call. If nobody reads the averaged weights of `nn.MultiheadAttention`, pass
`need_weights=False`. The gain: its share of the time in operators.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import UnreadSeen

CHECK = Check(code="LOOP016", severity=Severity.WARNING, since="0.2.0")
GRADIENTS = "autograd.grad"
"""UnreadSeen.what for calls of torch.autograd.grad."""
LEAST_OPERATORS = 0.10
"""Share of the step from which operators outside module calls are reported."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    seen = flow.of(profile)
    for row in seen.unread if seen is not None else ():
        assert seen is not None
        took, words = flow.unread_ms(profile, seen, row)
        saving = device_time.of_device(profile, took, words)
        whole = row.what.endswith("()") or row.what == GRADIENTS
        if not saving.worth or (
            not whole and saving.ms < LEAST_OPERATORS * profile.anatomy.step_ms
        ):
            continue
        yield Diagnosis(
            title=_title(row),
            evidence=f"{row.calls:.3g} a step, {words}; no backward pass, no read by the host and "
            "no variable that outlives the step takes the result"
            + (f"; it calls {row.module}" if row.module else ""),
            cure=_cure(row),
            severity=saving.severity,
            where=row.where,
            saves_ms=saving.ms,
            reason=f"{units.milliseconds(took)} go: {saving.reason}",
        )


def _title(row: UnreadSeen) -> str:
    if row.what == GRADIENTS:
        return "derivatives are computed by torch.autograd.grad, and nobody reads them"
    if not row.what.endswith("()"):
        return f"the result of {row.what} is read by nobody"
    return f"{row.what.removesuffix('()')} is called and nobody reads the result"


def _cure(row: UnreadSeen) -> Cure:
    if row.what == GRADIENTS:
        return Cure(
            "Compute these derivatives only in the steps that read them, or remove them.",
            savings.lines(row.where, "", "if step % 100 == 0:  # around these calls"),
        )
    call = f"{row.what.removesuffix('()')}(...)" if row.module else "model(x)"
    return Cure(
        "Remove it, or compute it only in the steps that read its result.",
        savings.lines(
            row.where,
            f"extra = {call}",
            f"extra = {call} if step % 100 == 0 else None",
        ),
    )
