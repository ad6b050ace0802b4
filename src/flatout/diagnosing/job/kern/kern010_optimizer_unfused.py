"""The optimizer updates the weights in several passes over memory, or tensor by tensor.

## What it sees

An optimizer of torch.optim that has a fused implementation and does not use it, and an update
that takes longer than this machine's memory needs for one pass over weights, gradients and state.

## Why it matters

The default (foreach) goes through memory once for each term of the formula, the for-loop also
launches each of them for every tensor. Fused, each number is read and written once.

## Cure

`fused=True` in the optimizer's constructor, or the boost fused-optimizer.

## References

- https://docs.pytorch.org/docs/stable/optim.html#algorithms
- https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import OptimizerFacts

CHECK = Check(code="KERN010", severity=Severity.WARNING, since="0.2.0")
PASSES = {"Adam": 7, "AdamW": 7, "SGD": 5, "Adagrad": 5}
"""Numbers read and written for each parameter by the fused implementation (SGD: with momentum)."""
REACHED = 0.7
"""Share of the memory bandwidth that a fused update is assumed to reach."""
SAVED, SAVED_CPU = 0.25, 0.15
"""Cautious shares of the update saved, if no bandwidth was measured."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all optimizers."""
    optimizers = profile.job.optimizers if profile.job is not None else ()
    slow = [
        optimizer
        for optimizer in optimizers
        if optimizer.from_torch and optimizer.kind in PASSES and not optimizer.fused
    ]
    took = profile.anatomy.part(Kind.OPTIMIZER)
    if not slow or len(slow) < len(optimizers) or took <= 0:
        return
    saved, words = _saved(profile, slow, took)
    saving = device_time.of_device(profile, saved, words)
    if not saving.worth:
        return
    kinds = list(dict.fromkeys(optimizer.kind for optimizer in slow))
    updates = operators.of_kind(profile, Kind.OPTIMIZER)
    where = profile.seen.optimizer_where if profile.seen is not None else None
    costliest = f"; {operators.evidence(profile, updates)}" if updates else ""
    yield Diagnosis(
        title=f"{' and '.join(kinds)} is not fused: the update takes {units.milliseconds(took)}",
        evidence=f"{sum(optimizer.parameters for optimizer in slow):,} parameters in "
        f"{sum(optimizer.tensors for optimizer in slow):,} tensors{costliest}",
        cure=Cure(
            "Let the optimizer update all weights in one pass.",
            tuple(line for kind in kinds for line in _lines(kind)),
        ),
        severity=saving.severity,
        where=where or operators.where(profile, updates),
        boost=savings.boost(profile, "fused-optimizer"),
        saves_ms=saving.ms,
        reason=saving.reason,
        most_ms=took,
    )


def _lines(kind: str) -> tuple[str, ...]:
    return savings.lines(
        None,
        f"optimizer = torch.optim.{kind}(model.parameters(), ...)",
        f"optimizer = torch.optim.{kind}(model.parameters(), ..., fused=True)",
    )


def _saved(profile: Profile, slow: list[OptimizerFacts], took: float) -> tuple[float, str]:
    names = ("triad-device", "copy-device") if savings.accelerated(profile) else ("memory-cpu",)
    bandwidth = next((value for name in names if (value := profile.ceiling(name))), None)
    if bandwidth is None:
        share = SAVED if savings.accelerated(profile) else SAVED_CPU
        return took * share, (
            f"the update takes {units.milliseconds(took)}; fused it is taken to save "
            f"{units.share(share)} (a cautious constant, no bandwidth was measured)"
        )
    moved = sum(
        optimizer.parameters
        * device_memory.DTYPE_BYTES.get(optimizer.dtype, 4)
        * PASSES[optimizer.kind]
        for optimizer in slow
    )
    needed = moved / (bandwidth * 1e9 * REACHED) * 1e3
    return max(took - needed, 0.0), (
        f"one pass moves {units.size(moved)}: at {units.share(REACHED)} of the measured "
        f"{bandwidth:.3g} GB/s {units.milliseconds(needed)} instead of {units.milliseconds(took)}"
    )
