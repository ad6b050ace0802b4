"""The same loss is differentiated twice: autograd.grad gives what backward gives as well.

## What it sees

A call of `torch.autograd.grad` in each step on a tensor that `backward` differentiates by the same
leaves from the same beginning, and whose results are equal: `.grad` was empty or zero before.
Mostly gradients that are computed in advance only to log their norm. Of calls of
`torch.autograd.grad` that give what another such call gives LOOP024 tells.

## Why it matters

It is a second backward pass, about two thirds of a training step, and the graph is kept for it.

## Evidence

Both lines, how often a step has this, and its share of the step's operators.

## Cure

Read the parameters' `.grad` after `backward`: `clip_grad_norm_` returns their norm, as does
`torch.nn.utils.get_total_norm`. The gain: the pass's share of the step; what reads the gradients is
still needed.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP022", severity=Severity.WARNING, since="0.3.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    seen = flow.of(profile)
    for row in seen.derived_again if seen is not None else ():
        assert seen is not None
        took, words = flow.unread_ms(profile, seen, row)
        saving = device_time.of_device(profile, took, words)
        if not saving.worth:
            continue
        yield Diagnosis(
            title="the same tensor is differentiated twice: autograd.grad gives what backward "
            "leaves in .grad",
            evidence=f"{row.calls:.3g} a step: {words}; the pass at {row.other_where} starts from "
            "the same tensor and gives the same gradients",
            cure=Cure(
                "Read the parameters' .grad after backward (clip_grad_norm_ returns their norm), "
                "or compute this only every N steps.",
                savings.lines(
                    row.where,
                    "grads = torch.autograd.grad(loss, parameters, retain_graph=True)",
                    "grads = [p.grad for p in parameters]  # after loss.backward()",
                ),
            ),
            severity=saving.severity,
            where=row.where,
            saves_ms=saving.ms,
            reason=f"{units.milliseconds(took)} go: {saving.reason}",
        )
