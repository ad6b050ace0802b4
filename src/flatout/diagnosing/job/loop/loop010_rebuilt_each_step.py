"""Modules or the optimizer are rebuilt in each step.

## What it sees

A `torch.nn.Module` that the loop creates in every second step or more often, and time in it; or a
`torch.optim.Optimizer`.

## Why it matters

Building a module allocates and draws all its weights; on an accelerator they are then copied there.
A rebuilt model has also lost what it learned. A rebuilt optimizer has lost its state: momentum and
the moments of Adam start at zero in each step, and it is not the intended optimizer any more.

## Cure

Build it once before the loop. A learning rate is changed with a scheduler or in `param_groups`.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
- https://docs.pytorch.org/tutorials/beginner/basics/buildmodel_tutorial.html
- https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, savings
from flatout.diagnosing.job.loop import loops
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP010", severity=Severity.WARNING, since="0.2.0")


@dataclass(frozen=True)
class Built:
    """What is built, as the watched loop names it."""

    name: str
    costs: str
    """{took}: its time."""
    cure: str
    line: str
    """{kind}: its class."""
    is_wrong: bool = False
    """Whether it is reported even if it takes no time."""


MODULE = Built("Module", "{took}", "Build it once, before the loop.", "module = {kind}(...)")
OPTIMIZER = Built(
    "Optimizer",
    "its state is lost",
    "Build it once, before the loop; change the learning rate in param_groups.",
    "optimizer = torch.optim.{kind}(model.parameters(), lr=lr)",
    is_wrong=True,
)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all modules, one for all optimizers."""
    for built in (MODULE, OPTIMIZER):
        yield from _rebuilt(profile, built)


def _rebuilt(profile: Profile, built: Built) -> Iterator[Diagnosis]:
    constructions = loops.calls(profile, f"{built.name}()")
    took = loops.ms(constructions)
    saving = device_time.of_step(
        profile, took, f"building takes {units.milliseconds(took)} a step, and is needed once"
    )
    if not constructions or not (saving.worth or built.is_wrong):
        return
    kind = constructions[0].detail or built.name
    line = built.line.format(kind=kind)
    where = loops.where(constructions)
    costs = built.costs.format(took=units.milliseconds(took))
    yield Diagnosis(
        title=f"{kind} is rebuilt in each step: {costs}",
        evidence=loops.evidence(constructions),
        cure=Cure(
            built.cure, savings.lines(where, f"    {line}  # in the loop", f"{line}  # before it")
        ),
        severity=None if built.is_wrong else saving.severity,
        where=where,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
