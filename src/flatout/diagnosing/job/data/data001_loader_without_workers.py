"""The training loop prepares its batches itself: the loader has no workers.

## What it sees

The DataLoader has `num_workers=0` (in a trace: its iterator is a _SingleProcessDataLoaderIter), and
the device waits for data, 3% of the step or more.

## Why it matters

Reading, decoding and augmenting run in the training loop's own thread, one sample after the other:
the device waits for each batch, and the data wait for the device. Workers prepare the next batches
while the device computes.

## Cure

Give the DataLoader workers. The gain: the step becomes the longer of the step without its wait and
the workers' share of the work; on a CPU the work stays and is spread over the cores. An
IterableDataset must divide its data itself, by `torch.utils.data.get_worker_info()`, or each worker
yields all of it.

## References

- https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA001", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.03
"""Share of the step below which starting processes does not pay."""
SINGLE = "_SingleProcessDataLoaderIter"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader."""
    if not _alone(profile):
        return
    wait, workers = loading.waited_ms(profile), loading.room(profile)
    if profile.job is None:
        workers = workers or 8  # a trace alone does not say how many cores there are
    if workers < 1:
        return
    if wait < LEAST_SHARE * profile.anatomy.step_ms:
        return
    work = max(wait, _in_loader_ms(profile))
    after = loading.step_with_workers(profile, work, workers)
    saves = savings.within(profile, profile.anatomy.step_ms - after)
    if not savings.worth(profile, saves):
        return
    step = profile.anatomy.step_ms
    yield Diagnosis(
        title=f"the loader has no workers: {units.share(wait / step)} of the step waits for data",
        evidence=f"waits {units.milliseconds(wait)} of {units.milliseconds(step)} for the loader, "
        f"num_workers=0{_on_cores(profile)}",
        cure=_cure(profile, workers),
        severity=savings.severity(profile, saves),
        where=loading.line(profile),
        boost=savings.boost(profile, "loader-workers"),
        saves_ms=saves,
        reason=f"{workers} workers prepare {units.milliseconds(work)} of samples beside the step: "
        f"{units.milliseconds(step)} becomes {units.milliseconds(after)}",
    )


def _alone(profile: Profile) -> bool:
    if profile.job is None:
        return any(SINGLE in gap.doing for gap in profile.gaps if gap.kind is Kind.WAIT_DATA)
    loader = loading.loader(profile)
    return loader is not None and loader.num_workers == 0


def _in_loader_ms(profile: Profile) -> float:
    """Milliseconds the loop spent preparing a step's batch, even while the device computed."""
    waited_ms = profile.seen.wait_s * 1000 if profile.seen is not None else 0.0
    return savings.within(profile, waited_ms)


def _on_cores(profile: Profile) -> str:
    share = loading.cores(profile)
    return f", {units.count(share, 'core')} for this process" if share is not None else ""


def _cure(profile: Profile, workers: int) -> Cure:
    line = f"num_workers={workers}, prefetch_factor=2, persistent_workers=True,"
    loader = loading.loader(profile)
    if loader is not None and loader.iterable:
        return Cure(
            f"Give the DataLoader {workers} workers and let {loader.dataset} divide its data "
            "among them.",
            (
                *savings.lines("in DataLoader(...)", "", line),
                *savings.lines(
                    f"in {loader.dataset}.__iter__",
                    "for item in self.items:",
                    "worker = torch.utils.data.get_worker_info()",
                    "start, count = (worker.id, worker.num_workers) if worker else (0, 1)",
                    "for item in itertools.islice(self.items, start, None, count):",
                ),
            ),
        )
    return Cure(
        f"Give the DataLoader {workers} workers: num_workers={workers}, persistent_workers=True.",
        savings.lines("in DataLoader(...)", "", line),
    )
