"""__getitem__ does for each sample what could be done once, or once a batch.

## What it sees

Operators on lines of a dataset's `__getitem__` run in the process that trains, at least one of the
same line for each sample, and the step waits for them.

## Why it matters

Each operator on one sample costs several microseconds of dispatch beside its arithmetic. Converting
and normalising a whole batch is one call; on the device it is nearly free. Work with the same
result for a sample in each epoch can be done before training.

## Cure

Return the sample as it is stored (uint8, token ids) and convert the batch, after moving it to the
device; compute constants once in `__init__`. The gain: the time on these lines, at most the step's
wait for the loader; on a CPU half of it, since the arithmetic itself remains.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.pytorch.org/vision/stable/transforms.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="DATA009", severity=Severity.WARNING, since="0.2.0")
FUNCTION = "__getitem__"
DRAWN = ("aten::randn", "aten::rand", "aten::normal_", "aten::uniform_", "aten::randint")
"""Operators that draw samples: synthetic data need no conversion."""
ON_CPU = 0.5


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the dataset."""
    samples = profile.seen.samples if profile.seen is not None else 0.0
    sample_operators = [
        operator for operator in profile.operators if _for_each_sample(operator, samples)
    ]
    if samples < 2 or not sample_operators:
        return
    spent = sum(operator.host_ms for operator in sample_operators)
    device = savings.accelerated(profile)
    saves = savings.within(profile, min(spent, loading.waited_ms(profile)))
    saves *= 1.0 if device else ON_CPU
    if not savings.worth(profile, saves):
        return
    first = max(sample_operators, key=lambda operator: operator.host_ms)
    calls = sum(operator.calls for operator in sample_operators)
    line = first.where.source if first.where is not None else ""
    yield Diagnosis(
        title=f"{calls:,.0f} operators a step on single samples in {FUNCTION}",
        evidence=f"{units.milliseconds(spent)} a step in {FUNCTION} for {samples:,.0f} samples, "
        f"{first.name} the most of it",
        cure=Cure(
            "Convert the whole batch at once after moving it to the device; return the "
            "sample as it is stored.",
            savings.lines(first.where, line, "# in the loop, once a batch:", _on_batch(line)),
        ),
        severity=savings.severity(profile, saves),
        where=str(first.where),
        saves_ms=saves,
        reason=f"{units.milliseconds(spent)} in these lines, of which the step waits for "
        f"{units.milliseconds(min(spent, loading.waited_ms(profile)))}"
        + ("" if device else "; half of it is dispatch that one call for the batch does once"),
    )


def _for_each_sample(operator: Operator, samples: float) -> bool:
    return (
        operator.where is not None
        and operator.where.function.rpartition(".")[2] == FUNCTION
        and operator.calls >= max(samples, 2.0) * 0.9
        and operator.name not in DRAWN
    )


def _on_batch(line: str) -> str:
    if "MEAN" in line or "mean" in line:
        return "images = (images.to(device).float() / 255 - mean) / std"
    return "batch = convert(batch.to(device))"
