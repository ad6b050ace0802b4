"""The loaders have more workers than there are cores.

## What it sees

The DataLoader's `num_workers` is larger than the number of cores that this process may use
(affinity, the cgroup's quota and the other processes of the job counted), and fewer workers would
do: they compute less than half of their time.

## Why it matters

Processes without their own core take turns. They start slower, each holds a copy of the dataset's
objects and its own batches in memory, and on a CPU they take the cores from training.
`os.cpu_count()` in a container or a batch job counts the machine's cores, not the job's.

## Evidence

The workers, the cores for this process, the share of their time that the workers compute.

## Cure

At most one worker a core, less one core for the training loop; fewer where they are idle. No gain
is predicted: idle workers cost memory and start-up time rather than time of a step.

## References

- https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
- https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA003", severity=Severity.NOTE, since="0.2.0")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader."""
    loader, share = loading.loader(profile), loading.cores(profile)
    busy, work = loading.workers_busy(profile), loading.prepared_ms(profile)
    if loader is None or share is None or busy is None or work is None:
        return
    if loader.num_workers <= share or loader.num_workers < 2 or busy >= loading.BUSY:
        return
    needed = math.ceil(1.25 * work / profile.anatomy.step_ms)
    workers = max(1, min(max(1, share - 1), needed))
    yield Diagnosis(
        title=f"{loader.num_workers} loader workers for {units.count(share, 'core')}",
        evidence=f"num_workers={loader.num_workers}, {units.count(share, 'core')} for this "
        f"process; the workers compute {units.share(busy)} of their time",
        cure=Cure(
            f"{workers} workers do the same: num_workers={workers}.",
            savings.lines(
                "in DataLoader(...)", f"num_workers={loader.num_workers}", f"num_workers={workers}"
            ),
        ),
        where=loading.line(profile),
    )
