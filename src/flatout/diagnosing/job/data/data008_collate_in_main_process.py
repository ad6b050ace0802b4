"""A collate function runs in the training loop's own process.

## What it sees

Operators on lines of a function whose name says that it collates (`collate`, `collate_fn`,
`pad_batch` ...) run in the process that trains.

## Why it matters

With workers the DataLoader collates in them, beside the step. If the loop calls the function
itself, or the loader has no workers, padding and stacking hold up the step.

## Evidence

The milliseconds a step on these lines, and the costliest of them.

## Cure

Pass the function to the DataLoader as `collate_fn` and give it workers; fill one tensor made in the
final size instead of padding sample by sample. The gain: the time on these lines, on a device as
far as it waits for data.

## References

- https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn
- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Place, Profile

CHECK = Check(code="DATA008", severity=Severity.WARNING, since="0.2.0")
WORDS = ("collate", "pad_batch", "make_batch", "to_batch")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the function with the costliest lines."""
    spent = {
        operator.where: operator.host_ms
        for operator in profile.operators
        if operator.where is not None and _collates(operator.where)
    }
    if not spent:
        return
    place = max(spent, key=lambda where: spent[where])
    total = sum(
        operator.host_ms
        for operator in profile.operators
        if operator.where is not None and operator.where.function == place.function
    )
    idle = profile.anatomy.part(Kind.WAIT_DATA, Kind.WAIT_HOST, Kind.WAIT_OTHER)
    saves = savings.within(profile, min(total, idle) if savings.accelerated(profile) else total)
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"{place.function}() makes the batches in the process that trains",
        evidence=f"operators in {place.function}(): {units.milliseconds(total)} a step, "
        f"the most of it at {place}",
        cure=Cure(
            f"Let loader workers call it: collate_fn={place.function} in the DataLoader, "
            "with num_workers above 0.",
            savings.lines(
                "in DataLoader(...)",
                "",
                f"collate_fn={place.function}, num_workers={max(1, loading.room(profile))},",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=str(place),
        saves_ms=saves,
        reason=f"{units.milliseconds(total)} of operators in it would run beside the step; the "
        f"step now waits for {units.milliseconds(saves)} of them",
    )


def _collates(place: Place) -> bool:
    return any(word in place.function.lower() for word in WORDS)
