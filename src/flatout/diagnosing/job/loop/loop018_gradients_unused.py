"""A backward pass computes gradients that nothing uses.

## What it sees

Parameters that get a gradient in each backward pass, though no optimizer of the process has them,
the program does not change them itself, and nothing reads the gradient: mostly a backbone that is
meant to be fixed, while only the head is given to the optimizer. Or a called module that is
trained, but not by this pass: all its gradients are set to zero or dropped before anything reads
them, while another part of the pass is used. That is mostly the discriminator's step of a GAN,
which also goes back through the generator. The data flow of two steps shows which operators of the
backward pass serve only these gradients.

## Why it matters

The backward pass through a part costs about twice its forward pass. If nothing before the part is
trained, all of that is wasted, and so are the activations kept for it.

## Evidence

The largest part with only such gradients, the line that calls it, and the share of the step's
operators that serve only these gradients.

## Cure

`backbone.requires_grad_(False)` once, before training; if nothing before it is trained, also
`with torch.no_grad():` around its call. If the parameters were to be trained, give them to the
optimizer instead. If another pass trains the part, `detach()` its output for this pass, or call it
under `torch.no_grad()` if no other pass needs that output. If another pass learns through the same
line, as through the encoder of a critic, freeze the part for this one. The gain: those operators'
share of the step; the forward pass then also keeps no activations, which is not counted.

## References

- https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
- https://docs.pytorch.org/tutorials/beginner/transfer_learning_tutorial.html
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
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
    """One finding for the model, or for each pass that drops some of its gradients."""
    seen = flow.of(profile)
    for row in seen.gradients if seen is not None else ():
        assert seen is not None
        took, words = flow.unread_ms(profile, seen, row)
        saving = device_time.of_device(profile, took, words)
        if saving.ms < LEAST * profile.anatomy.step_ms:
            continue
        yield Diagnosis(
            title=f"the backward pass computes gradients of {_part(row)}, and nothing uses them",
            evidence=f"{_evidence(row)}; operators for nothing else: {words}",
            cure=_detached(row) if row.dropped else _cure(row),
            severity=saving.severity,
            where=row.where,
            saves_ms=saving.ms,
            reason=f"{units.milliseconds(took)} of the backward pass go: {saving.reason}",
        )


def _part(row: GradientsSeen) -> str:
    if row.dropped:
        return row.what
    return f"the frozen {row.what}" if row.what else "parameters that no optimizer has"


def _evidence(row: GradientsSeen) -> str:
    if row.dropped:
        at = f" of the pass at {row.backward_where}" if row.backward_where else ""
        return f"the gradients{at} are set to zero or dropped before anything reads them"
    return (
        f"{units.count(row.tensors, 'parameter')} ({row.parameters:,} numbers) require a "
        "gradient and get one in each step, but belong to no optimizer and never change"
    )


def _detached(row: GradientsSeen) -> Cure:
    return Cure(
        "Detach its output for this pass: detach(), or torch.no_grad() around the call where no "
        "other pass needs the output. Where another pass learns through the same line, freeze the "
        "part for this one: part.requires_grad_(False) before its forward pass, True after.",
        savings.lines(row.where, "output = part(x)", "output = part(x).detach()"),
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
