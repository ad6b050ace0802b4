"""torch.compile compiles again and again.

## What it sees

Two or more recompilations while the job was watched, with the guards that failed.

## Why it matters

Each takes seconds in which nothing trains. After eight recompilations of one function, torch runs
it uncompiled from then on.

## Cure

Keep what the guard names constant: a Python number that changes each step goes in as a tensor, a
flag is set once, a list does not grow. `TORCH_LOGS=recompiles` shows each as it happens.

## References

- https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html
- https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job.loop import compiling, loops
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP004", severity=Severity.WARNING, since="0.2.0")
FEWEST = 2
"""One recompilation is often the change to dynamic shapes, or to evaluation."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all of them."""
    reasons = profile.seen.recompiles if profile.seen is not None else ()
    if len(reasons) < FEWEST:
        return
    saving = compiling.saving(profile)
    yield Diagnosis(
        title=f"torch.compile compiled again {len(reasons)} times",
        evidence=compiling.evidence(reasons),
        cure=Cure(
            "Keep constant what the failed guard names; a number that changes goes in as a tensor.",
            (
                "# which guard fails, as it happens:",
                " ".join(("TORCH_LOGS=recompiles", *(profile.command or ("python", "train.py")))),
            ),
        ),
        where=next((line for text in reasons if (line := loops.line_in(text))), None),
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
