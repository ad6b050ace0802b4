"""The loader's workers are too few: they are busy all the time, and the device waits.

## What it sees

The DataLoader has workers, the device waits for data all the same, the workers compute most of
their time (or that is not known), and there are cores left for more of them.

## Why it matters

Together the workers prepare fewer samples a second than the device trains on. Each further worker
with its own core adds as many as the others, until the device is the slower one.

## Cure

As many workers as prepare a step's samples within the step, with a quarter to spare. The gain: the
step becomes the longer of the step without its wait and the workers' share of the preparing.

## References

- https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA002", severity=Severity.WARNING, since="0.2.0")
SPARE = 1.25
"""Workers for each one needed on average: samples take different times."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader."""
    loader, room = loading.loader(profile), loading.room(profile)
    if loader is None or loader.num_workers < 1 or loader.num_workers >= room:
        return
    busy, work = loading.workers_busy(profile), loading.prepared_ms(profile)
    if busy is not None and busy < loading.BUSY:
        return  # they wait for the storage
    step, wait = profile.anatomy.step_ms, loading.steady_wait_ms(profile)
    work = loader.num_workers * step if work is None else work
    training = max(step - wait, 1e-3)
    workers = min(room, max(loader.num_workers + 1, math.ceil(SPARE * work / training)))
    after = max(training, work / workers)
    saves = savings.within(profile, step - after)
    if not savings.worth(profile, saves):
        return
    computing = f", computing {units.share(min(busy, 1.0))} of their time" if busy else ""
    yield Diagnosis(
        title=f"{loader.num_workers} loader workers are too few: the device waits for data",
        evidence=f"waits {units.milliseconds(wait)} of {units.milliseconds(step)} for the loader; "
        f"{loader.num_workers} workers{computing}; {loading.cores(profile)} cores",
        cure=Cure(
            f"Give the DataLoader {workers} workers: num_workers={workers}.",
            savings.lines(
                "in DataLoader(...)", f"num_workers={loader.num_workers}", f"num_workers={workers}"
            ),
        ),
        severity=savings.severity(profile, saves),
        where=loading.line(profile),
        saves_ms=saves,
        reason=f"a step's samples take {units.milliseconds(work)} of the workers' time: {workers} "
        f"of them need {units.milliseconds(work / workers)}, the step without its wait "
        f"{units.milliseconds(training)}",
    )
