"""The backward pass retains its graph, or runs through it twice.

## What it sees

`backward(retain_graph=True)` in each step, or more than one backward pass through one graph.

## Why it matters

A retained graph holds all activations until the loss is freed, even during the next forward pass:
peak memory is up to twice as high. A second pass through the same graph costs two thirds of the
step again.

## Cure

Add the losses and call `backward` once; leave out `retain_graph`.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
- https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import amdahl, units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="LOOP014", severity=Severity.WARNING, since="0.2.0")
KEEPS = re.compile(r"backward\(.*retain_graph\s*=\s*True")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    retaining = [operator for operator in profile.operators if _keeps(operator)]
    watched_line = profile.seen.backward_where if profile.seen is not None else None
    if not retaining or (
        watched_line is not None
        and watched_line not in {str(operator.where) for operator in retaining}
    ):
        return
    passes = profile.job.micro_steps if profile.job is not None else 1.0
    took = operators.total(
        profile, [operator for operator in profile.operators if operator.backward]
    )
    saved = amdahl.saved(took, passes) if passes >= 2 else 0.0
    saving = device_time.of_device(
        profile,
        saved,
        f"{passes:.3g} backward passes take {units.milliseconds(took)}; one of the sum of the "
        f"losses takes {units.milliseconds(took - saved)}",
    )
    place = next(operator.where for operator in retaining if operator.where is not None)
    yield Diagnosis(
        title="the backward pass retains its graph (retain_graph=True)",
        evidence=f"{place}: {place.source}; {passes:.3g} backward passes a step",
        cure=Cure(
            "Add the losses and call backward once.",
            savings.lines(
                place,
                place.source,
                "(loss + other_loss).backward()" if passes >= 2 else "loss.backward()",
            ),
        ),
        where=str(place),
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _keeps(operator: Operator) -> bool:
    return operator.where is not None and KEEPS.search(operator.where.source) is not None
