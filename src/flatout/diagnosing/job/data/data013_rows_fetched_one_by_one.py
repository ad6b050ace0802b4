"""Samples that lie in memory as rows of arrays are fetched one by one, and stacked again.

## What it sees

A DataLoader without workers and with PyTorch's collate function, whose batches the step waits for,
over a `TensorDataset` or a dataset whose `__getitem__` only looks up rows of tensors, arrays or
lists.

## Why it matters

A batch of 512 rows takes some thousand calls in Python and PyTorch: one lookup per row and array,
then a stack of them all. One index operation with all row numbers gives the same batch.

## Cure

Let the sampler hand out whole batches of indices, so that each array is indexed once. The gain: the
waiting, less a twentieth that the index operations take.

## References

- https://docs.pytorch.org/docs/stable/data.html#disable-automatic-batching
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA013", severity=Severity.WARNING, since="0.2.0", hides=("DATA001",))
FEWEST = 8
"""Rows of a batch below which fetching one by one is as good."""
LEFT = 0.05
"""Share of the waiting that the index operations still take."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader."""
    loader = loading.loader(profile)
    if loader is None or loader.num_workers or loader.read_singly:
        return
    if (loader.batch_size or 0) < FEWEST:
        return
    wait = loading.waited_ms(profile)
    saves = savings.within(profile, (1 - LEFT) * wait)
    boost = savings.boost(profile, "batch-fetch")
    if boost is None or not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title="the rows of each batch are fetched one by one: "
        f"{units.share(wait / profile.anatomy.step_ms)} of the step waits for them",
        evidence=f"waits {units.milliseconds(wait)} of "
        f"{units.milliseconds(profile.anatomy.step_ms)} for {loader.batch_size} rows of "
        f"{loader.dataset}, which are in memory",
        cure=Cure(
            "Let the sampler hand out whole batches of indices: each array is indexed once.",
            savings.lines(
                loading.line(profile),
                f"DataLoader(dataset, batch_size={loader.batch_size}, shuffle=True)",
                f"order = BatchSampler(RandomSampler(dataset), {loader.batch_size}, "
                "drop_last=False)",
                "DataLoader(dataset, sampler=order, batch_size=None)",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=loading.line(profile),
        boost=boost,
        saves_ms=saves,
        reason=f"{units.milliseconds(wait)} of waiting, less {units.share(LEFT)} for the index "
        "operations",
    )
