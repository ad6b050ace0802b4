"""A backward pass computes gradients that nothing uses.

## What it sees

Parameters that get a gradient in each backward pass, though no optimizer of the process has them,
the program does not change them itself, and nothing reads the gradient: mostly a backbone that is
meant to be fixed, while only the head is given to the optimizer. The data flow of two steps shows
which operators of the backward pass serve only these gradients.

## Why it matters

The backward pass through a part costs about twice its forward pass. If nothing before the part is
trained, all of that is wasted, and so are the activations kept for it.

## Cure

`backbone.requires_grad_(False)` once, before training; if nothing before it is trained, also
`with torch.no_grad():` around its call. If the parameters were to be trained, give them to the
optimizer instead. The gain: those operators' share of the step; the forward pass then also keeps no
activations, which is not counted.

## References

- https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
- https://docs.pytorch.org/tutorials/beginner/transfer_learning_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import GradientsSeen

CHECK = Check(code="LOOP018", severity=Severity.WARNING, since="0.2.0")
LEAST = 0.03
"""Share of the step."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the model."""
    seen = flow.of(profile)
    row = seen.gradients if seen is not None else None
    if seen is None or row is None:
        return
    took, words = flow.unread_ms(profile, seen, row)
    saving = device_time.of_device(profile, took, words)
    if saving.ms < LEAST * profile.anatomy.step_ms:
        return
    part = f"the frozen {row.what}" if row.what else "parameters that no optimizer has"
    yield Diagnosis(
        title=f"the backward pass computes gradients of {part}, and nothing uses them",
        evidence=f"{units.count(row.tensors, 'parameter')} ({row.parameters:,} numbers) require a "
        "gradient and get one in each step, but belong to no optimizer and never change; "
        f"operators for nothing else: {words}",
        cure=_cure(row),
        severity=saving.severity,
        where=row.where,
        saves_ms=saving.ms,
        reason=f"{units.milliseconds(took)} of the backward pass go: {saving.reason}",
    )


def _cure(row: GradientsSeen) -> Cure:
    freezes = "backbone.requires_grad_(False)  # once, before training"
    if row.after_trained or not row.what:
        return Cure(
            "Freeze them: requires_grad_(False). If they were to be trained, give them to the "
            "optimizer.",
            savings.lines(row.where, "", freezes),
        )
    return Cure(
        "Freeze them, and call this part under torch.no_grad(). If they were to be trained, give "
        "them to the optimizer.",
        savings.lines(
            row.where,
            "features = backbone(x)",
            freezes,
            "with torch.no_grad():",
            "    features = backbone(x)",
        ),
    )
