"""A package other than torch takes a large part of each step.

## What it sees

In sampled stacks: a line of the script that calls another package (scikit-learn, NumPy, pandas,
Matplotlib, NetworkX, SymPy, logging, a compressor, copying) in each step, for 4 % of the step or
more. For a package that runs the loop, only its logging (`self.log`) counts, and only on a line
that logs a dozen values or more in a step, as in a loop over all weights. On an accelerator the
time counts while the device waits for the host. Lines seen in only one or two sampled steps, such
as an evaluation at the end of an epoch, are a note.

## Why it matters

Training waits meanwhile. Most of these calls serve a report or a metric that nobody reads in each
step, or prepare something that could be prepared once.

## Cure

Call it every N steps instead of each, on tensors instead of arrays, once before training, or in a
thread or a loader's worker. The gain: nine
tenths of the time. `torch.compile` does not cure it.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.python.org/3/library/concurrent.futures.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.diagnosing.job.host import loop_logging, packages, threads
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST010", severity=Severity.WARNING, since="0.2.0", hides=("HOST007",))


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each kind of call from one function to a package."""
    for group in host_lines.by_call(profile, host_lines.of(profile, HostKind.LIBRARY)):
        saves = host_lines.saved_ms(profile, group.ms)
        package, callee = group.lines[0].package, group.lines[0].callee
        if packages.runs_loop(package, callee) or not host_lines.worth(profile, group):
            continue
        if package == "gc" and "collect(" in callee:  # HOST003's, which counts collections
            continue
        if not savings.worth(profile, saves) or loop_logging.is_sparing(profile, group):
            continue
        share = units.share(group.ms / profile.anatomy.step_ms)
        use = packages.use(package, callee)
        thread = threads.fed(profile, group)
        if thread is not None:
            saves = host_lines.saved_ms(profile, group.ms + threads.waited_ms(profile, group))
        saves, severity = host_lines.promised(profile, group, saves)
        yield Diagnosis(
            title=f"{packages.subject(package, callee, use)} takes {units.milliseconds(group.ms)}, "
            f"{share} of the step{host_lines.often(profile, group)}",
            evidence=host_lines.evidence(profile, group) + threads.words(profile, thread),
            cure=Cure(use.cure, savings.lines(group.where, "", *use.lines)),
            severity=severity,
            where=str(group.where),
            saves_ms=saves,
            reason=f"nine tenths of {units.milliseconds(group.ms)} in {package}, on the host"
            + (", and of what its thread holds up" if thread is not None else "")
            + host_lines.doubt(profile, group),
            covers=tuple(dict.fromkeys(str(line.where) for line in group.lines)),
        )
