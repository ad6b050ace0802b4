"""Tensors are turned into text in each step.

## What it sees

In sampled stacks: a line of the script below which torch formats tensors (`print(x)`, `f"{x}"`,
`str(x)`, `repr(x)`, `log.debug(x)`), for 4 % of the step or more. On an accelerator it counts while
the device waits for the host; SYNC001 reports lines that print or log there.

## Why it matters

The text of one tensor takes a tenth of a millisecond to some milliseconds: its values are copied,
compared and rounded by up to hundreds of small operators, and put together in Python. An f-string
is made before `log.debug` is called, even if that level is off and nobody ever reads it.

## Cure

Leave it out, or make it only if it is read: `log.debug("%s", x)` formats only logged tensors,
`if log.isEnabledFor(logging.DEBUG):` skips all of it; print every 50 steps. A large tensor's shape
or mean says more than its corners. The gain: nine tenths of the time. Compiling the model does not
cure it.

## References

- https://docs.python.org/3/howto/logging.html#optimization
- https://docs.pytorch.org/docs/stable/generated/torch.set_printoptions.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings, stalls
from flatout.diagnosing.job.host import operator_loops, packages
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST018", severity=Severity.WARNING, since="0.2.0", hides=("HOST007",))
LOGS = re.compile(r"\b\w*log\w*\.(debug|info|warning|error|critical|log|trace)\(", re.IGNORECASE)
PRINTS = re.compile(r"\bprint\(")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    stalling = {
        str(sync.where)
        for stall in (stalls.Stall.PRINT, stalls.Stall.LOGGING)
        for sync in stalls.of(profile, stall)
    }
    for group in host_lines.formatting(profile):
        saves = host_lines.saved_ms(profile, group.ms)
        if not host_lines.worth(profile, group) or not savings.worth(profile, saves):
            continue
        if str(group.where) in stalling or _of_a_runner(group):
            continue
        saves, severity = host_lines.promised(profile, group, saves)
        share = units.share(group.ms / profile.anatomy.step_ms)
        yield Diagnosis(
            title=f"tensors are turned into text: {units.milliseconds(group.ms)}, {share} of the "
            f"step{host_lines.often(profile, group)}",
            evidence=_operators(profile, group) + host_lines.evidence(profile, group),
            cure=_cure(group),
            severity=severity,
            where=str(group.where),
            saves_ms=saves,
            reason=f"nine tenths of {units.milliseconds(group.ms)} for text of tensors"
            + host_lines.doubt(profile, group),
            covers=(str(group.where),),
        )


def _of_a_runner(group: LineGroup) -> bool:
    """Whether a package that runs the loop does it for itself."""
    return any(packages.runs_loop(line.framework, line.callee) for line in group.lines)


def _operators(profile: Profile, group: LineGroup) -> str:
    """For the evidence: how many operators making the text calls."""
    calls = sum(row.calls for row in operator_loops.called_on(profile, group.where))
    return f"{calls:,.0f} operators a step from here; " if calls >= 1 else ""


def _cure(group: LineGroup) -> Cure:
    source = group.where.source
    if LOGS.search(source):
        return Cure(
            "The text is made before the logger is called, whether its level is on or off: hand "
            "over format and values, which are formatted only where they are logged; or ask for "
            "the level first. Or log shape, dtype and mean instead of the tensor.",
            savings.lines(
                group.where,
                source,
                'log.debug("in %s out %s", x, out)  # no f-string',
                "# or: if log.isEnabledFor(logging.DEBUG): ...",
            ),
        )
    if PRINTS.search(source):
        return Cure(
            "Print every 50 steps, and of a large tensor its shape or mean; or leave it out.",
            savings.lines(group.where, source, packages.EVERY_50, f"    {source}"),
        )
    return Cure(
        "Leave the text out where nobody reads it, or make it only then, every 50 steps; of a "
        "large tensor take shape, dtype or mean instead.",
        savings.lines(group.where, source, packages.EVERY_50, f"    {source}"),
    )
