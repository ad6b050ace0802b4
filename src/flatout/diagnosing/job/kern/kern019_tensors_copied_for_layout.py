"""Tensors are copied only to change their memory layout.

## What it sees

The user's lines with `.contiguous()`, `.clone()`, or a `.reshape()`, `.permute()` or `.transpose()`
that has to copy, if the copying takes a share of the step. Lines that also call layers count only
if they ask for a copy by name, since layers make their own copies.

## Why it matters

Such a line computes nothing: it reads and writes the whole tensor, and its backward pass does so
again. Most operators take permuted tensors as they are.

## Cure

Drop `.contiguous()` where the next operator does not need it; keep one order through the model
(batch first, heads after the length, channels-last) instead of permuting back and forth.

## References

- https://docs.pytorch.org/docs/stable/tensor_view.html
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Place, Profile

CHECK = Check(code="KERN019", severity=Severity.WARNING, since="0.2.0")
COPIES = r"aten::(copy_|clone|contiguous|_reshape_copy)"
REORDERS = re.compile(
    r"\.(contiguous|permute|transpose|movedim|reshape|flatten)\(|\.(mT|T)\b|\brearrange\("
)
COPYING = re.compile(r"\.(contiguous|clone)\(")
"""Explicit requests for a copy."""
SHARE = 0.02
"""Least share of the step for one line."""
SAVED = 0.5
"""Cautious share saved: not every copy can be avoided."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    lines: dict[Place, list[Operator]] = {}
    for operator in operators.called(profile, COPIES):
        # Inputs of more than one dtype mean a conversion, as by autocast.
        if (
            operator.where is not None
            and REORDERS.search(operator.where.source)
            and len(operator.dtypes) == 1
        ):
            lines.setdefault(operator.where, []).append(operator)
    computing = _computing(profile)
    for place, copies in lines.items():
        if place in computing and not COPYING.search(place.source):
            continue  # the source of the copies is unknown
        took = operators.total(profile, copies)
        if took >= SHARE * profile.anatomy.step_ms:
            yield from _diagnosis(profile, place, copies, took)


def _computing(profile: Profile) -> set[Place | None]:
    """Lines that also call layers, which make their own copies."""
    kinds = (Kind.TENSOR_CORES, Kind.MATMUL, Kind.ATTENTION, Kind.NORMALISATION)
    return {operator.where for operator in operators.of_kind(profile, *kinds)}


def _diagnosis(
    profile: Profile, place: Place, copies: list[Operator], took: float
) -> Iterator[Diagnosis]:
    saving = device_time.of_device(
        profile,
        took * SAVED,
        f"copies of this line take {units.milliseconds(took)}, of which {units.share(SAVED)} is "
        "taken to be needless (a cautious constant)",
    )
    if not saving.worth:
        return
    after = place.source.replace(".contiguous()", "")
    yield Diagnosis(
        title=f"copies for another layout at {place}: {units.milliseconds(took)}",
        evidence=operators.evidence(profile, copies),
        cure=Cure(
            "Keep the order that the next operator takes as it is.",
            savings.lines(place, place.source, after) if after != place.source else (),
        ),
        severity=saving.severity,
        where=str(place),
        saves_ms=saving.ms,
        reason=saving.reason,
    )
