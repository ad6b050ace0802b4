"""The script's own Python takes a large part of each step.

## What it sees

In sampled stacks: a function of the script itself that runs Python (loops, lists, dictionaries,
strings, built-in functions), and not operators, for 4 % of the step or more. On an accelerator it
counts where the device waits for the host.

## Why it matters

Python executes some ten million simple operations a second, on one core, while all else waits. A
double loop over 128 x 128 elements takes a millisecond; the same as one operator takes
microseconds.

## Evidence

The lines of the function with their milliseconds a step, in how many stacks they were seen, and
the lines that called them.

## Cure

What gives the same in each step, do once before the loop. What goes over elements or samples,
write as operators on whole tensors. What is only reported, do every N steps. The gain: nine tenths
of the time. `torch.compile` does not cure it.

## References

- https://docs.pytorch.org/docs/stable/notes/broadcasting.html
- https://docs.pytorch.org/docs/stable/generated/torch.where.html
- https://docs.python.org/3/library/functools.html#functools.lru_cache
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST009", severity=Severity.WARNING, since="0.3.0", hides=("HOST007",))
MODULE = "<module>"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each function."""
    own = [line for line in host_lines.of(profile, HostKind.PYTHON) if not line.updating]
    for group in host_lines.by_function(profile, own):
        saves = host_lines.saved_ms(profile, group.ms)
        if not host_lines.worth(profile, group) or not savings.worth(profile, saves):
            continue
        share = units.share(group.ms / profile.anatomy.step_ms)
        function = host_lines.function(group.where).rpartition(".")[2]
        name = "the script's own lines" if function == MODULE else f"{function[:30]}()"
        yield Diagnosis(
            title=f"Python in {name} takes {units.milliseconds(group.ms)}, {share} of the step"[
                :100
            ],
            evidence=host_lines.evidence(profile, group),
            cure=Cure(
                "Do it once before the loop if it gives the same each time; write loops over "
                "elements as operators on whole tensors; what is only reported, every 50 steps.",
                savings.lines(
                    group.where,
                    "",
                    "result = ...  # before the loop, or with functools.lru_cache",
                    "# or on whole tensors: torch.where, gather, index_select, broadcasting",
                ),
            ),
            severity=savings.severity(profile, saves),
            where=str(group.where),
            saves_ms=saves,
            reason=f"nine tenths of {units.milliseconds(group.ms)} of Python on one core",
        )
