"""Work that the training does not need takes a large part of each step.

## What it sees

Lines of the script that run in each step beside forward pass, loss, backward pass and update, for
10 % of the step or more: averages and copies of the weights, statistics in forward hooks, singular
values in a callback, clones of gradients. By the data flow of two consecutive steps, their results
reach neither a backward pass nor the weights, nor anything from which the loss is computed. Never
reported are augmentation, losses and all that they depend on, which belong to the training; lines
with a value that the program reads or keeps and may use for the training, such as rewards; and a
few values that the package that runs the loop logs (`self.log`).
On an accelerator the time counts in which it computes for these lines or waits for the host.

## Why it matters

The step is that much longer, and training learns nothing from it.

## Cure

Report only every N steps, which saves nearly all of the time. Average or copy weights in place, on
all tensors at once, which saves about seven tenths. Gradients are added up by `backward` itself.

## References

- https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
- https://docs.pytorch.org/docs/stable/generated/torch.nn.modules.module.register_module_forward_hook.html
- https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.diagnosing.job.host import beside, loop_logging, purposes
from flatout.diagnosing.job.host.beside import WorkBeside
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST017", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.10
"""Share of the step."""
ELSEWHERE = 0.5
"""Share of the work's time in calls that LOOP008 reports by name."""
MODULE = "<module>"
NAMED_CALLS = ("torch.save", "print", "logging", "SummaryWriter.add_scalar", "wandb.log")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each piece of work."""
    for work in beside.works(profile):
        ms = max(work.group.ms, work.device_ms)
        purpose = purposes.of(work)
        if purpose is None or ms < LEAST_SHARE * profile.anatomy.step_ms:
            continue
        if _named(profile, work) or loop_logging.is_sparing(profile, work.group):
            continue
        if work.group.samples < host_lines.LEAST_SAMPLES:
            continue
        saves = max(
            host_lines.saved_ms(profile, work.group.ms, purpose.spared),
            savings.within(profile, purpose.spared * work.device_ms),
        )
        if not savings.worth(profile, saves):
            continue
        share = units.share(ms / profile.anatomy.step_ms)
        named = work.function != MODULE and not work.hooked
        place = f" in {work.function[:24]}()" if named else ""
        yield Diagnosis(
            title=f"{purpose.what}{place} takes {units.milliseconds(ms)}, {share} of the step",
            evidence=f"{host_lines.evidence(profile, work.group)}; {purpose.why}",
            cure=Cure(purpose.cure, savings.lines(work.group.where, "", *purpose.lines)),
            severity=savings.severity(profile, saves),
            where=str(work.group.where),
            saves_ms=saves,
            reason=f"{units.share(purpose.spared)} of {units.milliseconds(ms)} beside the training",
            covers=work.covers,
            needless=True,
        )


def _named(profile: Profile, work: WorkBeside) -> bool:
    """Whether most of it is calls that have their own finding."""
    places = {str(line.where) for line in work.group.lines}
    calls = profile.seen.calls if profile.seen is not None else ()
    took_ms = sum(
        1000 * call.s for call in calls if call.name in NAMED_CALLS and call.where in places
    )
    return took_ms >= ELSEWHERE * work.group.ms
