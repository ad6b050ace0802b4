"""A line copies data other than loader batches to the device from memory that is not pinned.

## What it sees

Copies from host to device start from pageable memory on a line of the script: a NumPy array, a list
of tensors, a batch that the loop has put together or changed, after a loader that pins or with no
loader at all.

## Why it matters

The driver copies such memory twice, the host waits for it, and it does not overlap with computing.
A tensor made from a pinned one (`x.float()`, `torch.cat`) is not pinned again.

## Cure

Copy first and convert on the device. If the data come from the script's own memory, pin them:
`.pin_memory()`, or allocate one pinned buffer and refill it. The gain: the exposed milliseconds
less the time of the same bytes from pinned memory (half of them if not measured).

## References

- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.pin_memory.html
- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Copy, Profile

CHECK = Check(code="COPY003", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that copies from pageable memory."""
    loader = loading.loader(profile)
    unpinned_loader = loader is not None and not loader.pin_memory and not loader.batch_on_device
    for copy in copies.pageable(profile):
        if copies.built_here(copy) or (unpinned_loader and copies.of_batches(copy)):
            continue  # other checks report tensors made on the line, and the loader's batches
        yield from _line(profile, copy)


def _line(profile: Profile, copy: Copy) -> Iterator[Diagnosis]:
    pinned = copies.pinned_ms(profile, copy.bytes)
    after = copy.exposed_ms / 2 if pinned is None else min(pinned, copy.exposed_ms)
    saves = savings.within(profile, copy.exposed_ms - after)
    if not savings.worth(profile, saves):
        return
    if copy.where is None:
        change = savings.lines(None, "x.to(device)", "x.pin_memory().to(device, non_blocking=True)")
    else:
        changed = copies.MOVES.sub(
            lambda match: (
                f".pin_memory().{match[1]}"
                f"({match[2] + ', ' if match[2].strip() else ''}non_blocking=True)"
            ),
            copy.where.source,
        )
        change = savings.lines(copy.where, copy.where.source, changed)
    yield Diagnosis(
        title=f"{units.size(copy.bytes)} a step are copied from memory that is not pinned",
        evidence=f"{copies.evidence([copy])}, {units.milliseconds(copy.exposed_ms)} of it while "
        f"nothing computes{copies.bandwidths(profile)}",
        cure=Cure("Copy from pinned memory, best from one buffer that is refilled.", change),
        severity=savings.severity(profile, saves),
        where=str(copy.where) if copy.where is not None else None,
        saves_ms=saves,
        reason=f"{units.milliseconds(copy.exposed_ms)} exposed now, {units.milliseconds(after)} "
        + ("from pinned memory" if pinned is not None else "at twice the speed"),
    )
