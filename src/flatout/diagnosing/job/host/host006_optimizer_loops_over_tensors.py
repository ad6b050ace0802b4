"""The optimizer updates the parameters one by one.

## What it sees

An optimizer that has no fused implementation runs as a loop over the tensors: on a CPU where
`foreach` was not asked for, elsewhere where it was switched off, or an optimizer of the script's
own that launches several operators for each tensor.

## Why it matters

For each tensor some five to ten small operators are dispatched or launched. With hundreds of
tensors that is thousands of calls for a few milliseconds of arithmetic.

## Cure

`foreach=True`; in your own optimizer the `torch._foreach_*` functions, or torch.compile. The gain:
the dispatch of all calls but one in each operator, taken to be 5 us on a CPU and 10 us on a device;
at most half of the update.

For an update by hand, use an optimizer of torch.optim with `fused=True`, which reads and writes
each weight once. The gain: of the lines' time all but one operator for each weight, at most eight
tenths.

## References

- https://docs.pytorch.org/docs/stable/optim.html#algorithms
- https://docs.pytorch.org/docs/stable/torch.html#foreach-operations
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.diagnosing.job.host import operator_loops
from flatout.nouns import amdahl, units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import OptimizerFacts, UpdateSeen

CHECK = Check(code="HOST006", severity=Severity.WARNING, since="0.2.0")
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Another check compares these with their fused implementation."""
FOREACH = ("Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
FEW = 16
CALLS = 2.0
"""Operators for each tensor from which it counts as a loop."""
DISPATCH_MS, LAUNCH_MS = 0.005, 0.010
MOST = 0.5


SHOWN = 3
"""Lines that the evidence names."""
SPARED = 0.8
"""The most of a hand-written update's time that is saved."""
SCALED = ("aten::sqrt", "aten::sqrt_", "aten::rsqrt", "aten::addcdiv_", "aten::_foreach_sqrt")
"""Operators that optimizers like Adam call and plain gradient descent does not."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each such optimizer, or for the update by hand."""
    if profile.seen is not None and profile.seen.update is not None:
        yield from _by_hand(profile, profile.seen.update)
        return
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


def _by_hand(profile: Profile, update: UpdateSeen) -> Iterator[Diagnosis]:
    took = operator_loops.update_ms(profile)
    calls = units.count(update.operators, "operator")
    spared = min(SPARED, 1 - update.tensors / max(update.operators, 1))
    saves = min(host_lines.saved_ms(profile, took), savings.within(profile, spared * took))
    if not savings.worth(profile, saves):
        return
    step_ms = profile.anatomy.step_ms
    yield Diagnosis(
        title=f"the weights are updated by hand: {units.milliseconds(took)}, "
        f"{units.share(took / step_ms)} of the step",
        evidence=f"{calls} for {units.count(update.tensors, 'weight')}, "
        f"{units.milliseconds(took)} of {units.milliseconds(step_ms)}, from {_shown(update)}; no "
        "optimizer of torch.optim steps",
        cure=Cure(
            "Let an optimizer of torch.optim update all weights together, with fused=True.",
            savings.lines(
                update.where,
                "",
                f"optimizer = torch.optim.{_like(profile, update)}(model.parameters(), ..., "
                "fused=True)  # once, before the loop",
                "optimizer.step()  # instead of these lines",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=update.where,
        saves_ms=saves,
        reason=f"{calls} become one for each of {units.count(update.tensors, 'weight')}; at most "
        f"{units.share(SPARED)} of these lines' time",
    )


def _shown(update: UpdateSeen) -> str:
    """The lines for the evidence."""
    more = len(update.lines) - SHOWN
    return ", ".join(update.lines[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _like(profile: Profile, update: UpdateSeen) -> str:
    """The optimizer that calls such operators."""
    names = {operator.name for operator in profile.operators if str(operator.where) in update.lines}
    return "Adam" if names.intersection(SCALED) else "SGD"


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
