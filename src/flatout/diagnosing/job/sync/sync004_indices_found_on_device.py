"""The number of selected elements is only known on the device: nonzero, boolean masks.

## What it sees

A line calls `nonzero`, `masked_select`, `unique`, `repeat_interleave` or indexes with a boolean
mask in each step, and the device idles after it.

## Why it matters

The size of the result depends on the values. The host must wait for it before it can make the
result and go on launching. torch.compile breaks its graph there and CUDA graphs cannot be recorded.

## Cure

Keep the full size: `torch.where(mask, x, 0)`, or multiply with the mask and divide by its sum; for
`repeat_interleave` give `output_size`. The gain: the idle time.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nonzero.html
- https://docs.pytorch.org/docs/stable/generated/torch.where.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC004", severity=Severity.WARNING, since="0.2.0")
MEAN_OF_MASKED = re.compile(r"(\w+)\[(\w+)\]\.mean\(\)")
SUM_OF_MASKED = re.compile(r"(\w+)\[(\w+)\]\.sum\(\)")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    yield from stalls.diagnoses(profile, stalls.Stall.NONZERO, _title, _cure)


def _title(sync: Sync) -> str:
    name = sync.name.removeprefix("aten::").strip("_")
    chooser = "a boolean mask" if name.startswith(("index", "_index")) else name
    return f"the host waits for the number of elements that {chooser} selects"


def _cure(sync: Sync) -> Cure:
    source = sync.where.source if sync.where is not None else ""
    after = MEAN_OF_MASKED.sub(r"(\1 * \2).sum() / \2.sum()", source)
    after = SUM_OF_MASKED.sub(r"(\1 * \2).sum()", after)
    if after == source:
        after = "kept = torch.where(mask, x, 0)  # in full size; divide by mask.sum() for means"
    return Cure(
        "Keep the full size and zero the rest with the mask.",
        savings.lines(sync.where, source, after),
    )
