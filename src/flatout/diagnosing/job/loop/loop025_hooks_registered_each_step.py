"""Hooks or parameter groups are added in each step and stay: steps grow.

## What it sees

A hook of a module, a parameter or an optimizer that the loop registers in every second step or more
often, and that is still there when the window ends; likewise `Optimizer.add_param_group`.

## Why it matters

All of them run in each later step. A step that takes 3 ms at first takes 60 ms after some thousand
others, and the memory that they hold grows as well.

## Cure

Add it once, before the loop; or keep the handle that `register_*_hook` returns and call `remove()`
on it in the same step.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_forward_hook
- https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.add_param_group.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, savings
from flatout.diagnosing.job.loop import loops
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(
    code="LOOP025",
    severity=Severity.WARNING,
    since="0.2.0",
    # The hooks' own work: with one of each left, it may not be worth reporting.
    hides=("HOST008", "HOST011", "KERN007", "LOOP016"),
)
WORTH_TELLING = 1.1
"""How many times as long as at the beginning a step must take to be reported."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all of them."""
    added = loops.calls(profile, "hook", "Optimizer.add_param_group")
    if not added or profile.seen is None:
        return
    most = max(added, key=lambda call: call.calls)
    hooks = most.name == "hook"
    added_what = "Hooks are" if hooks else "A parameter group is"
    title = f"{added_what} added in each step and never removed"
    early_ms, now_ms = profile.seen.early_step_s * 1000, profile.seen.step_s * 1000
    grown_ms = 0.0
    if early_ms and now_ms > WORTH_TELLING * early_ms:
        grown_ms = now_ms - early_ms
        grew = f"{units.milliseconds(early_ms)} at the beginning, {units.milliseconds(now_ms)} now"
        title = f"{title}: a step took {grew}"
    saving = device_time.of_step(
        profile, grown_ms, f"steps have grown by {units.milliseconds(grown_ms)}"
    )
    what = f"{most.calls:.3g} {'hooks' if hooks else 'parameter groups'} a step stay"
    yield Diagnosis(
        title=title,
        evidence=f"{what}, of {most.detail or 'a model'}, added at {most.where or 'unknown'}",
        cure=Cure(
            "Register it once, before the loop, or keep the handle and remove() it."
            if hooks
            else "Add the group once, when its parameters appear.",
            savings.lines(most.where, *_lines(hooks)),
        ),
        severity=saving.severity if saving.worth else None,
        where=most.where,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _lines(hooks: bool) -> tuple[str, str]:
    if hooks:
        return (
            "    module.register_forward_hook(hook)  # in the loop: one more in each step",
            "module.register_forward_hook(hook)  # before it: once",
        )
    return (
        '    optimizer.add_param_group({"params": parameters})  # in the loop',
        'optimizer.add_param_group({"params": parameters})  # once',
    )
