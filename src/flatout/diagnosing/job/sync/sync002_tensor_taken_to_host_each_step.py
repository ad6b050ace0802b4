"""A tensor is taken to the host in each step: .cpu(), .numpy(), .tolist().

## What it sees

A line moves a (small) tensor from the device to the host in each step, and the device idles after
it. Another check reports large ones.

## Why it matters

The host must wait until the device has computed the tensor; then the device has nothing to do until
the next launches arrive.

## Cure

Keep it on the device (`detach()`), collect several steps and copy them together; or copy with
`non_blocking=True` and look at it one step later. The gain: the idle time.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import copies, savings, stalls
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile, Sync

CHECK = Check(code="SYNC002", severity=Severity.WARNING, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    large = {
        str(copy.where)
        for copy in copies.to_host(profile)
        if copy.bytes >= stalls.LARGE and copy.where is not None
    }
    for diagnosis in stalls.diagnoses(profile, stalls.Stall.HOST_COPY, _title, _cure):
        if diagnosis.where not in large:
            yield diagnosis


def _title(sync: Sync) -> str:
    line = f" by {sync.where.source}" if sync.where is not None and sync.where.source else ""
    return f"a tensor is taken to the host in each step{line}"[:100]


def _cure(sync: Sync) -> Cure:
    source = sync.where.source if sync.where is not None else ""
    after = stalls.TO_HOST.sub(".detach(", source, count=1).replace(
        ".detach().numpy()", ".detach()"
    )
    return Cure(
        "Keep it on the device and copy the tensors of several steps together.",
        (
            *savings.lines(
                sync.where, source or "kept.append(x.cpu())", after or "kept.append(x.detach())"
            ),
            "+ if step % 50 == 0:",
            "+     values = torch.stack(kept).cpu()",
        ),
    )
