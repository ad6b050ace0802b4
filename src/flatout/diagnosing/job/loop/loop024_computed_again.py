"""torch.autograd.grad computes gradients that `backward` computes as well.

## What it sees

In two consecutive steps: a call of `torch.autograd.grad` for weights, and a `backward` of the same
loss that leaves the same gradients in `.grad`; mostly gradients computed in advance only to log
their norm. A `backward` that adds to gradients of another loss does not count, nor does a call with
`create_graph=True`. LOOP016 reports calls whose results nobody reads.

## Why it matters

The same numbers are computed twice: a backward pass takes two thirds of a training step.

## Cure

After `backward` the parameters' gradients are in `.grad`, and `clip_grad_norm_` returns their norm.
The gain: the time of the operators of these calls.

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

CHECK = Check(code="LOOP024", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that calls torch.autograd.grad."""
    seen = flow.of(profile)
    for row in seen.again if seen is not None else ():
        assert seen is not None
        took, words = flow.unread_ms(profile, seen, row)
        saving = device_time.of_device(profile, took, words)
        if not saving.worth:
            continue
        yield Diagnosis(
            title="torch.autograd.grad computes the gradients that backward computes as well",
            evidence=f"{row.calls:.3g} such calls a step, and the pass at {row.backward_where} "
            f"gives the same gradients: {words}; in two consecutive steps",
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
