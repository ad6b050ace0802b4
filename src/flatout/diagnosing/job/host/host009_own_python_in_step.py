"""The script's own Python takes a large part of each step.

## What it sees

In sampled stacks: a function of the script itself that runs Python (loops, lists, dictionaries,
strings, built-in functions), and not operators, for 4 % of the step or more. On an accelerator it
counts while the device waits for the host. Below 9 % one or two lines without a loop, sorting or
text are a note: every program has some Python. Lines seen in only one or two sampled steps are
also a note.

## Why it matters

Python executes about ten million simple operations a second, on one core, while all else waits. A
double loop over 128 x 128 elements takes a millisecond, one operator for it microseconds.

## Cure

Do work that gives the same in each step once, before the loop. Replace loops over elements or
samples by operators on whole tensors. Vectorise environments that are stepped one by one. Look
items up in sets, not in lists. Compute reports only every N steps. The gain: nine tenths of the
time. `torch.compile` does not cure it.

## References

- https://docs.pytorch.org/docs/stable/notes/broadcasting.html
- https://docs.pytorch.org/docs/stable/generated/torch.where.html
- https://docs.python.org/3/library/functools.html#functools.lru_cache
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST009", severity=Severity.WARNING, since="0.2.0", hides=("HOST007",))
MODULE = "<module>"
PLAIN = 0.09
"""Share of the step below which lines without a loop are a note: every program has some."""
FEW = 2
"""Lines; more are the body of a loop or of a function that is called repeatedly."""
HEAVY = re.compile(
    r"\b(for|while|lambda|sorted|sum|max|min|map|filter|zip|join|split|any|all|set|dict|list|tuple|"
    r"tolist|format|str|repr|print|deepcopy)\b|<\w*comp>|%|\bf[\"']"
)
"""Code in a line that may take long by itself."""
STEPS = re.compile(
    r"\b(env|environment|sim|world)\.step\(|\bfor\b.*\b(envs?|environments?|sims|worlds)\b"
)
"""Calls that step environments one by one."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each function."""
    own = [line for line in host_lines.of(profile, HostKind.PYTHON) if not line.updating]
    for group in host_lines.by_function(profile, own):
        saves = host_lines.saved_ms(profile, group.ms)
        if not host_lines.worth(profile, group) or not savings.worth(profile, saves):
            continue
        saves, severity = host_lines.promised(profile, group, saves)
        share = units.share(group.ms / profile.anatomy.step_ms)
        function = host_lines.function(group.where).rpartition(".")[2]
        name = "the script's own lines" if function == MODULE else f"{function[:30]}()"
        yield Diagnosis(
            title=f"Python in {name} takes {units.milliseconds(group.ms)}, {share} of the step"
            + host_lines.often(profile, group),
            evidence=host_lines.evidence(profile, group),
            cure=_cure(group),
            severity=_severity(profile, group, severity),
            where=str(group.where),
            saves_ms=saves,
            reason=f"nine tenths of {units.milliseconds(group.ms)} of Python on one core"
            + host_lines.doubt(profile, group),
        )


def _severity(profile: Profile, group: LineGroup, severity: Severity) -> Severity:
    """The severity: a note if it is little and nothing in it loops or is heavy."""
    numbers = {line.where.line for line in group.lines}
    texts = (f"{line.where.function} {line.callee} {line.where.source}" for line in group.lines)
    heavy = len(numbers) > FEW or any(HEAVY.search(text) for text in texts)
    if not heavy and group.ms < PLAIN * profile.anatomy.step_ms:
        return Severity.NOTE
    return severity


def _cure(group: LineGroup) -> Cure:
    loop = next(
        (
            place
            for line in group.lines
            for place in (line.where, *reversed(line.chain))
            if STEPS.search(place.source)
        ),
        None,
    )
    if loop is not None:
        return Cure(
            f"Vectorise the environments that {loop} steps one by one: the states of all as one "
            "array or tensor, each operation once for all; or in processes "
            "(gymnasium.vector.AsyncVectorEnv).",
            savings.lines(
                loop, loop.source, "states, rewards, done = envs.step(actions)  # all at once"
            ),
        )
    return Cure(
        "Do it once before the loop if it gives the same each time; write loops over "
        "elements as operators on whole tensors; what is only reported, every 50 steps.",
        savings.lines(
            group.where,
            "",
            "result = ...  # before the loop, or with functools.lru_cache",
            "# or on whole tensors: torch.where, gather, index_select, broadcasting",
        ),
    )
