"""The optimizer updates the parameters one by one.

## What it sees

An optimizer that has no fused implementation runs as a loop over the tensors: on a CPU where
`foreach` was not asked for, elsewhere where it was switched off, or an optimizer of the script's
own that launches several operators for each tensor.

## Why it matters

For each tensor some five to ten small operators are dispatched or launched. With hundreds of
tensors that is thousands of calls for a few milliseconds of arithmetic.

## Evidence

The optimizer, its tensors, the operators of an update and their time.

## Cure

`foreach=True`; in your own optimizer the `torch._foreach_*` functions, or torch.compile. The gain:
the dispatch of all calls but one in each operator, taken to be 5 us on a CPU and 10 us on a device;
at most half of the update.

## References

- https://docs.pytorch.org/docs/stable/optim.html#algorithms
- https://docs.pytorch.org/docs/stable/torch.html#foreach-operations
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.nouns import amdahl, units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import OptimizerFacts

CHECK = Check(code="HOST006", severity=Severity.WARNING, since="0.2.0")
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Another check compares these with their fused implementation."""
FOREACH = ("Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
FEW = 16
CALLS = 2.0
"""Operators for each tensor from which it is a loop."""
DISPATCH_MS, LAUNCH_MS = 0.005, 0.010
MOST = 0.5


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each such optimizer."""
    took = profile.anatomy.part(Kind.OPTIMIZER)
    calls = sum(part.launches for part in profile.anatomy.parts if part.kind is Kind.OPTIMIZER)
    optimizers = profile.job.optimizers if profile.job is not None else ()
    slow = [facts for facts in optimizers if facts.tensors >= FEW and _loops(profile, facts)]
    if len(slow) != 1 or len(optimizers) != 1 or calls < CALLS * slow[0].tensors:
        return
    optimizer = slow[0]
    call_ms = LAUNCH_MS if savings.accelerated(profile) else DISPATCH_MS
    saves = savings.within(
        profile, min(MOST * took, amdahl.saved(call_ms * calls, optimizer.tensors))
    )
    if not savings.worth(profile, saves):
        return
    where = profile.seen.optimizer_where if profile.seen is not None else None
    yield Diagnosis(
        title=f"{optimizer.kind} updates {optimizer.tensors} tensors one by one",
        evidence=f"{calls:,.0f} operators for {optimizer.tensors} tensors, "
        f"{units.milliseconds(took)} of {units.milliseconds(profile.anatomy.step_ms)}",
        cure=_cure(optimizer),
        severity=savings.severity(profile, saves),
        where=where,
        boost=savings.boost(profile, "fused-optimizer"),
        saves_ms=saves,
        reason=f"{calls:,.0f} calls of {1000 * call_ms:.0f} us become those of one tensor; at most "
        "half of the update",
    )


def _loops(profile: Profile, optimizer: OptimizerFacts) -> bool:
    if not optimizer.from_torch:
        return True
    if optimizer.kind in FUSED or optimizer.kind not in FOREACH:
        return False
    return optimizer.foreach is False or (
        optimizer.foreach is None and not savings.accelerated(profile)
    )


def _cure(optimizer: OptimizerFacts) -> Cure:
    if optimizer.from_torch:
        return Cure(
            "Let it update all tensors together: foreach=True.",
            savings.lines(
                "where the optimizer is made",
                f"torch.optim.{optimizer.kind}(model.parameters(), ...)",
                f"torch.optim.{optimizer.kind}(model.parameters(), ..., foreach=True)",
            ),
        )
    return Cure(
        f"Let {optimizer.kind} update all tensors together, with torch._foreach functions.",
        savings.lines(
            f"in {optimizer.kind}.step",
            "for p in parameters: p.add_(p.grad, alpha=-lr)",
            "torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-lr)",
        ),
    )
