"""The loader's workers wait for the storage.

## What it sees

The device waits for data although the DataLoader has workers, and those compute less than half of
their time: they wait for the disk, the network file system or the object store.

## Why it matters

Small files on a slow or remote storage cost one round trip each. While a worker waits for it, it
prepares nothing; the cores are idle and so is the device.

## Cure

Copy the data to a local disk, or pack small files into larger ones that are read in one go (tar
shards, LMDB, Arrow, memory-mapped arrays). More workers overlap more round trips; they need no core
while they wait. The gain: the step becomes the longer of the step without its wait and the workers'
share of their computing.

## References

- https://docs.pytorch.org/docs/stable/data.html
- https://github.com/webdataset/webdataset
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA006", severity=Severity.WARNING, since="0.2.0")
LEAST_IDLE = 0.25
"""Share of the workers' time that they must wait, if stacks show it."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader."""
    loader, busy = loading.loader(profile), loading.workers_busy(profile)
    work = loading.prepared_ms(profile)
    if loader is None or busy is None or work is None or busy >= loading.BUSY:
        return
    step, wait = profile.anatomy.step_ms, loading.steady_wait_ms(profile)
    idle = profile.host.worker_idle_ms if profile.host is not None else None
    if idle is not None and idle < LEAST_IDLE * loader.num_workers * step:
        return  # workers have no core, or nothing to do
    after = max(step - wait, work / loader.num_workers)
    saves = savings.within(profile, step - after)
    if not savings.worth(profile, saves):
        return
    more = 2 * loader.num_workers
    yield Diagnosis(
        title=f"the loader's workers wait for the storage, {units.share(1 - busy)} of their time",
        evidence=f"waits {units.milliseconds(wait)} of {units.milliseconds(step)} for the loader; "
        f"{loader.num_workers} workers compute {units.milliseconds(work)} a step together, "
        f"{units.share(busy)} of their time",
        cure=Cure(
            "Put the data on a local disk or pack its small files into large ones; until then, "
            f"num_workers={more} overlaps more of the waiting.",
            savings.lines(
                "in DataLoader(...)", f"num_workers={loader.num_workers}", f"num_workers={more}"
            ),
        ),
        severity=savings.severity(profile, saves),
        where=loading.line(profile),
        saves_ms=saves,
        reason=f"without waiting for the storage the workers need "
        f"{units.milliseconds(work / loader.num_workers)} a step, the rest of the step "
        f"{units.milliseconds(step - wait)}",
    )
