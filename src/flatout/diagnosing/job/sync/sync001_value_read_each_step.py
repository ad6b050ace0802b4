"""A number is read from the device in each step: .item().

## What it sees

A line asks for a tensor's value (`loss.item()`, `float(loss)`, an accuracy as a Python number) in
each step, and the device idles after it.

## Why it matters

The host launches kernels ahead of the device. To read a value it must wait until the device has
computed everything up to it; then the device has nothing left to do until the next launches arrive.

## Cure

Accumulate on the device (`running += loss.detach()`) and read the sum every N steps. The gain: the
idle time.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC001", severity=Severity.WARNING, since="0.2.0")
READS = re.compile(r"\.item\(\)|\bfloat\((\w+)\)")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    yield from stalls.diagnoses(profile, stalls.Stall.ITEM, _title, _cure)


def _title(sync: Sync) -> str:
    line = f" by {sync.where.source}" if sync.where is not None and sync.where.source else ""
    return f"a value is read from the device in each step{line}"[:100]


def _cure(sync: Sync) -> Cure:
    source = sync.where.source if sync.where is not None else ""
    after = READS.sub(lambda match: f"{match[1]}.detach()" if match[1] else ".detach()", source)
    return Cure(
        "Accumulate on the device and read the sum every 50 steps.",
        (
            *savings.lines(
                sync.where, source or "total += loss.item()", after or "total += loss.detach()"
            ),
            "+ if step % 50 == 0:",
            "+     mean = (total / 50).item()",
        ),
    )
