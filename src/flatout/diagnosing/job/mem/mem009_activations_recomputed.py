"""Activations are computed twice to save memory, although most memory is free.

## What it sees

`torch.utils.checkpoint` in the model, on a GPU or a CPU, while less than half of the memory would
ever be in use even without it. Two steps whose operators are followed show which of them a
checkpoint calls again in the backward pass, and how large their results are; if they were not
followed, the operators of lines that call a checkpoint are examined.

## Why it matters

Checkpointing runs the forward pass of its blocks once more in the backward pass: up to a third more
computing. That pays only if the activations would not fit otherwise.

## Cure

Remove it, or checkpoint only as many blocks as memory asks for. The gain: the operators that are
called again.

## References

- https://docs.pytorch.org/docs/stable/checkpoint.html
- https://arxiv.org/abs/1604.06174
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, device_time, flow, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile
from flatout_agent.wire import FlowSeen, RecomputedSeen

CHECK = Check(code="MEM009", severity=Severity.WARNING, since="0.2.0")
EMPTY = 0.5
RECOMPUTED = 0.2
"""Cautious share of computing in the second forward pass; a quarter if all is repeated."""
CALL = re.compile(r"\bcheckpoint(_sequential)?\(|\.gradient_checkpointing")
NODE = re.compile(r"(autograd::engine::evaluate_function: )?CheckpointFunction(Backward)?")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the model."""
    used = device_memory.share_used(profile)
    if used is None or used >= EMPTY:
        return
    seen = flow.of(profile)
    if seen is not None:
        yield from _followed(profile, seen, seen.recomputed)
    else:
        yield from _by_lines(profile, used)


def _followed(profile: Profile, seen: FlowSeen, row: RecomputedSeen | None) -> Iterator[Diagnosis]:
    """A finding by the operators that were called again."""
    watched = profile.seen
    if row is None or watched is None or not watched.memory_total_bytes:
        return
    kept = (watched.memory_peak_bytes or 0) + row.bytes
    took, words = flow.unread_ms(profile, seen, row)
    saving = device_time.of_device(
        profile, took, f"{units.count(row.operators, 'operator')} called again: {words}"
    )
    if kept >= EMPTY * watched.memory_total_bytes or not saving.worth:
        return
    where = watched.checkpointing_where or row.where
    called = watched.checkpointing_where is None
    yield Diagnosis(
        title="activation checkpointing computes forward passes twice, and memory is "
        f"{units.share(1 - kept / watched.memory_total_bytes)} free",
        evidence=f"in each backward pass {units.count(row.operators, 'operator')} of the forward "
        f"pass are called again: {words}; {device_memory.evidence(profile)}, and without "
        f"checkpoints {units.size(row.bytes)} more at most",
        cure=Cure(
            "Remove the checkpoint and call the block itself."
            if called
            else "Remove it, or switch it off.",
            savings.lines(where, "x = checkpoint(block, x, use_reentrant=False)", "x = block(x)")
            if called
            else savings.lines(where, "model.gradient_checkpointing_enable()"),
        ),
        severity=saving.severity,
        where=where,
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _by_lines(profile: Profile, used: float) -> Iterator[Diagnosis]:
    """A finding by operators of lines that call a checkpoint, if the data flow is unknown."""
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
        evidence=f"{operators.evidence(profile, checkpointed)}; {device_memory.evidence(profile)}",
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
