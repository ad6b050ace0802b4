"""A branch of the script depends on a value on the device.

## What it sees

`if loss > limit`, `while mask.any()`, `assert torch.isfinite(x).all()` or `torch.equal` on tensors
of the device, in each step: the device idles after it.

## Why it matters

Python must know the value before it can go on: the host waits for the device, and the device then
waits for the host. torch.compile breaks its graph there and CUDA graphs cannot be recorded.

## Cure

Let the device decide: `torch.where(condition, a, b)`; test for NaN every N steps, or with
`torch._assert_async`. The gain: the idle time.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.where.html
- https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC011", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    yield from stalls.diagnoses(profile, stalls.Stall.BRANCH, _title, _cure)


def _title(sync: Sync) -> str:
    line = f": {sync.where.source}" if sync.where is not None and sync.where.source else ""
    return f"a branch waits for a value on the device{line}"[:100]


def _cure(sync: Sync) -> Cure:
    source = sync.where.source if sync.where is not None else ""
    first = source.partition(" ")[0]
    after: tuple[str, ...]
    if first == "assert":
        after = ("if step % 50 == 0:", f"    {source}")
    elif first in ("if", "elif") and source.endswith(":"):
        after = (f"if step % 50 == 0 and {source.removeprefix(first).strip()}",)
    else:
        after = ("value = torch.where(condition, a, b)  # the device decides",)
    return Cure(
        "Let the device decide with torch.where, or look only every 50 steps.",
        savings.lines(sync.where, source, *after),
    )
