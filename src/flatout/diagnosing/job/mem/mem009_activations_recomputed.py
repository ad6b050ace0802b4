"""Activations are computed twice to save memory, although most memory is free.

## What it sees

`torch.utils.checkpoint` in the model, while less than half of the device's memory is ever in use.

## Why it matters

Checkpointing runs the forward pass of its blocks once more in the backward pass: up to a third more
computing. That pays only where the activations would not fit otherwise.

## Evidence

The line that checkpoints, and the memory in use.

## Cure

Leave it out, or checkpoint only as many blocks as memory asks for.

## References

- https://docs.pytorch.org/docs/stable/checkpoint.html
- https://arxiv.org/abs/1604.06174
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, memory, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="MEM009", severity=Severity.WARNING, since="0.2.0")
EMPTY = 0.5
RECOMPUTED = 0.2
"""Cautious share of computing that is the second forward pass; a quarter where it is all."""
CALL = re.compile(r"\bcheckpoint(_sequential)?\(|\.gradient_checkpointing")
NODE = re.compile(r"(autograd::engine::evaluate_function: )?CheckpointFunction(Backward)?")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the model."""
    used = memory.share_used(profile)
    if used is None or used >= EMPTY:
        return
    checkpointed = [
        operator
        for operator in profile.operators
        if NODE.fullmatch(operator.name) or _in_line(operator)
    ]
    if not checkpointed:
        return
    took = profile.anatomy.part(*operators.COMPUTING)
    saving = device_time.of_device(
        profile,
        took * RECOMPUTED,
        f"computing takes {units.milliseconds(took)}, of which {units.share(RECOMPUTED)} is taken "
        "to be the second forward pass (a cautious constant; a quarter where all is checkpointed)",
    )
    if not saving.worth:
        return
    place = operators.costliest_place(
        profile, [operator for operator in checkpointed if _in_line(operator)]
    )
    yield Diagnosis(
        title=f"activations are computed twice, with memory {units.share(used)} full",
        evidence=f"{operators.evidence(profile, checkpointed)}; {memory.evidence(profile)}",
        cure=Cure(
            "Call the block itself; or checkpoint every second one.",
            savings.lines(
                place,
                place.source if place is not None else "x = checkpoint(block, x)",
                "x = block(x)",
            ),
        ),
        severity=saving.severity,
        where=str(place) if place is not None else None,
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _in_line(operator: Operator) -> bool:
    return operator.where is not None and CALL.search(operator.where.source) is not None
