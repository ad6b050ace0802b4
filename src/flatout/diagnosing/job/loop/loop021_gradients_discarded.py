"""A backward pass goes through a part whose gradients are thrown away.

## What it sees

A called module that is trained, but not by this backward pass: of all that the pass computes for it
nothing is read before the gradients are set to zero or dropped, while another part of the same pass
is used. Mostly the discriminator's step of a GAN, which goes back through the generator as well.
The data flow of two steps shows which operators serve nothing but these gradients.

## Why it matters

The backward pass through a part costs about twice its forward pass, and the activations are kept
for it.

## Evidence

The part and the line that calls it, the line of the backward pass, and the share of the step's
operators that serve only these gradients.

## Cure

`detach()` the part's output where this pass uses it, or call the part under `torch.no_grad()` where
no other pass needs that output. Where another pass learns through the same line, as through the
encoder of a critic, freeze the part for this one: `requires_grad_(False)` before its forward pass,
`True` after. The gain: those operators' share of the step; what the forward pass
saves without gradients is not counted.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
- https://docs.pytorch.org/tutorials/beginner/dcgan_faces_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import DiscardedSeen

CHECK = Check(code="LOOP021", severity=Severity.WARNING, since="0.3.0")
LEAST = 0.03
"""Share of the step."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each call; none beside gradients of what is never trained (LOOP018)."""
    seen = flow.of(profile)
    if seen is None or seen.gradients is not None:
        return
    for row in seen.discarded:
        took, words = flow.unread_ms(profile, seen, row)
        saving = device_time.of_device(profile, took, words)
        if saving.ms < LEAST * profile.anatomy.step_ms:
            continue
        yield Diagnosis(
            title=f"a backward pass goes through {row.what}, whose gradients are thrown away",
            evidence=f"{_passes(row)}: the gradients of {row.what} are set to zero or dropped "
            f"before anything reads them; operators for nothing else: {words}",
            cure=Cure(
                "Detach its output for this pass: detach(), or torch.no_grad() around the call "
                "where no other pass needs the output. Where another pass learns through the same "
                "line, freeze the part for this one: part.requires_grad_(False) before its "
                "forward pass, True after.",
                savings.lines(row.where, "output = part(x)", "output = part(x).detach()"),
            ),
            severity=saving.severity,
            where=row.where,
            saves_ms=saving.ms,
            reason=f"{units.milliseconds(took)} of the backward pass go: {saving.reason}",
        )


def _passes(row: DiscardedSeen) -> str:
    passes = f"{row.calls:.3g} backward pass{'' if row.calls == 1 else 'es'} a step"
    return f"{passes} at {row.backward_where}" if row.backward_where else passes
