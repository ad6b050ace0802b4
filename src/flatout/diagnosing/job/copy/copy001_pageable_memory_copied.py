"""Data are copied to the device from pageable memory: the loader's batches, or the script's own.

## What it sees

Copies from host to device that start from pageable memory:

- the batches of a DataLoader with `pin_memory=False`
- other data on a line of the script: a NumPy array, a list of tensors, a batch that the loop has
  put together or changed, after a loader that pins or with no loader at all

## Why it matters

The device reads page-locked memory directly. Pageable memory is staged through a buffer of the
driver: half as fast, the host waits for it, and it cannot overlap with computing. A tensor made
from a pinned one (`x.float()`, `torch.cat`) is not pinned again.

## Cure

Batches: `pin_memory=True` in the DataLoader, and `non_blocking=True` in the loop's copies. Others:
copy first and convert on the device; pin the script's own memory with `.pin_memory()`, or allocate
one pinned buffer and refill it. The gain: the exposed milliseconds less the time of the same bytes
from pinned memory (half of them if that was not measured).

## References

- https://docs.pytorch.org/docs/stable/data.html#memory-pinning
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.pin_memory.html
- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Copy, Profile

CHECK = Check(code="COPY001", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader's batches, and one for each line that copies others.

    Another check reports tensors made on the line that copies them.
    """
    loader = loading.loader(profile)
    pins = loader is None or loader.pin_memory
    pageable = copies.pageable(profile)
    batches = [] if pins else [copy for copy in pageable if copies.of_batches(copy)]
    if batches:
        yield from _batches(profile, batches)
    for copy in pageable:
        if copy not in batches and not copies.built_here(copy):
            yield from _line(profile, copy)


def _batches(profile: Profile, batches: Sequence[Copy]) -> Iterator[Diagnosis]:
    moved = units.size(sum(copy.bytes for copy in batches))
    place = max(batches, key=lambda copy: copy.bytes).where
    cure = Cure(
        "Pin the batches: pin_memory=True in the DataLoader, non_blocking=True in the loop.",
        (*savings.lines("in DataLoader(...)", "", "pin_memory=True,"), *copies.not_blocking(place)),
    )
    yield from _pageable(
        profile,
        batches,
        f"batches of {moved} are copied from memory that is not pinned",
        f"pin_memory=False; {moved} a step from pageable memory",
        cure,
        where=str(place) if place is not None else loading.line(profile),
        boost=savings.boost(profile, "loader-pin-memory"),
    )


def _line(profile: Profile, copy: Copy) -> Iterator[Diagnosis]:
    yield from _pageable(
        profile,
        [copy],
        f"{units.size(copy.bytes)} a step are copied from memory that is not pinned",
        copies.evidence([copy]),
        Cure("Copy from pinned memory, best from one buffer that is refilled.", _pinned(copy)),
        where=str(copy.where) if copy.where is not None else None,
    )


def _pageable(
    profile: Profile,
    moving: Sequence[Copy],
    title: str,
    evidence: str,
    cure: Cure,
    where: str | None,
    boost: str | None = None,
) -> Iterator[Diagnosis]:
    exposed = sum(copy.exposed_ms for copy in moving)
    pinned = copies.pinned_ms(profile, sum(copy.bytes for copy in moving))
    after = exposed / 2 if pinned is None else min(pinned, exposed)
    saves = savings.within(profile, exposed - after)
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=title,
        evidence=f"{evidence}, {units.milliseconds(exposed)} of it while nothing computes"
        f"{copies.bandwidths(profile)}",
        cure=cure,
        severity=savings.severity(profile, saves),
        where=where,
        boost=boost,
        saves_ms=saves,
        reason=f"{units.milliseconds(exposed)} exposed now; from pinned memory the same bytes take "
        + ("about half of that" if pinned is None else units.milliseconds(after)),
    )


def _pinned(copy: Copy) -> tuple[str, ...]:
    """The line of the copy, changed to copy from pinned memory."""
    place = copy.where
    if place is None:
        return savings.lines(None, "x.to(device)", "x.pin_memory().to(device, non_blocking=True)")

    def pin(match: re.Match[str]) -> str:
        arguments = f"{match[2]}, " if match[2].strip() else ""
        return f".pin_memory().{match[1]}({arguments}non_blocking=True)"

    return savings.lines(place, place.source, copies.MOVES.sub(pin, place.source))
