"""The optimizer is rebuilt in each step and loses its state.

## What it sees

A `torch.optim.Optimizer` that the loop creates in every second step or more often.

## Why it matters

Momentum and the moments of Adam start at zero in each step: it is not the intended optimizer any
more. Building it and allocating its state also takes time.

## Cure

Build it once before the loop; a learning rate is changed with a scheduler or in `param_groups`.

## References

- https://docs.pytorch.org/docs/stable/optim.html
- https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, savings
from flatout.diagnosing.job.loop import loops
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP011", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all of them."""
    constructions = loops.calls(profile, "Optimizer()")
    if not constructions:
        return
    took = loops.ms(constructions)
    saving = device_time.of_step(
        profile, took, f"building takes {units.milliseconds(took)} a step, and is needed once"
    )
    name = constructions[0].detail or "Optimizer"
    yield Diagnosis(
        title=f"{name} is rebuilt in each step: its state is lost",
        evidence=loops.evidence(constructions),
        cure=Cure(
            "Build it once, before the loop; change the learning rate in param_groups.",
            savings.lines(
                loops.where(constructions),
                f"    optimizer = torch.optim.{name}(model.parameters(), lr=lr)  # in the loop",
                f"optimizer = torch.optim.{name}(model.parameters(), lr=lr)  # before it",
            ),
        ),
        where=loops.where(constructions),
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
