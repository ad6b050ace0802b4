"""The loader's workers do not keep up: too few, waiting for the storage, or no cores are left.

## What it sees

The DataLoader has workers, and the device waits for data all the same.

- They compute less than half of their time: they wait for the disk, the network file system or the
  object store.
- They compute most of their time (or that is not known), and there are cores for more of them.
- They compute most of their time, and there are about as many as there are cores for them.

## Why it matters

Together the workers prepare fewer samples a second than the device trains on. Each further worker
with its own core adds as many as the others, until the device is the slower one.

Small files on a slow or remote storage cost one round trip each. While a worker waits for it, it
prepares nothing; the cores are idle and so is the device.

Where the cores cannot decode and augment as fast as the device trains, only less work a sample
helps, or other hardware to do it.

## Cure

As many workers as prepare a step's samples within the step, with a quarter to spare. The gain: the
step becomes the longer of the step without its wait and the workers' share of the preparing.

Storage: copy the data to a local disk, or pack small files into larger ones that are read in one go
(tar shards, LMDB, Arrow, memory-mapped arrays). More workers overlap more round trips; they need no
core while they wait.

Without further cores decode less: store the pictures at the size that training needs, let the
decoder scale (`flatout.image_loader` does), keep decoded samples in a cache, or decode and augment
on the GPU. The predicted gain is that of samples that take half as long.

## References

- https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://github.com/webdataset/webdataset
- https://docs.pytorch.org/vision/stable/generated/torchvision.io.decode_jpeg.html
- https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.Image.draft
- https://docs.nvidia.com/deeplearning/dali/user-guide/docs/index.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostLine
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA002", severity=Severity.WARNING, since="0.2.0")
SPARE = 1.25
"""Workers for each one needed on average: samples take different times."""
LEAST_IDLE = 0.25
"""Share of the workers' time that they must wait for the storage, if stacks show it."""
HALF = 0.5


def check(profile: Profile) -> Iterator[Diagnosis]:
    """At most one finding for the training loader."""
    loader = loading.loader(profile)
    if loader is None or loader.num_workers < 1:
        return
    room, busy, work = (
        loading.room(profile),
        loading.workers_busy(profile),
        loading.prepared_ms(profile),
    )
    if busy is not None and work is not None and busy < loading.BUSY:
        yield from _storage(profile, loader.num_workers, busy, work)
    elif loader.num_workers < room:
        yield from _too_few(profile, loader.num_workers, room, busy, work)
    elif busy is not None and work is not None and room > 0:
        yield from _binds(profile, loader.num_workers, room, busy, work)


def _storage(profile: Profile, workers: int, busy: float, work: float) -> Iterator[Diagnosis]:
    step, wait = profile.anatomy.step_ms, loading.steady_wait_ms(profile)
    idle = profile.host.worker_idle_ms if profile.host is not None else None
    if idle is not None and idle < LEAST_IDLE * workers * step:
        return  # workers have no core, or nothing to do
    saves = savings.within(profile, step - max(step - wait, work / workers))
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"the loader's workers wait for the storage, {units.share(1 - busy)} of their time",
        evidence=f"waits {units.milliseconds(wait)} of {units.milliseconds(step)} for the loader; "
        f"{workers} workers compute {units.milliseconds(work)} a step together, "
        f"{units.share(busy)} of their time",
        cure=Cure(
            "Put the data on a local disk or pack its small files into large ones; until then, "
            f"num_workers={2 * workers} overlaps more of the waiting.",
            _lines(workers, 2 * workers),
        ),
        severity=savings.severity(profile, saves),
        where=loading.line(profile),
        saves_ms=saves,
        reason=f"without waiting for the storage the workers need "
        f"{units.milliseconds(work / workers)} a step, the rest of the step "
        f"{units.milliseconds(step - wait)}",
    )


def _too_few(
    profile: Profile, workers: int, room: int, busy: float | None, work: float | None
) -> Iterator[Diagnosis]:
    step, wait = profile.anatomy.step_ms, loading.steady_wait_ms(profile)
    work = workers * step if work is None else work
    training = max(step - wait, 1e-3)
    enough = min(room, max(workers + 1, math.ceil(SPARE * work / training)))
    saves = savings.within(profile, step - max(training, work / enough))
    if not savings.worth(profile, saves):
        return
    computing = f", computing {units.share(min(busy, 1.0))} of their time" if busy else ""
    yield Diagnosis(
        title=f"{workers} loader workers are too few: the device waits for data",
        evidence=f"waits {units.milliseconds(wait)} of {units.milliseconds(step)} for the loader; "
        f"{workers} workers{computing}; {loading.cores(profile)} cores",
        cure=Cure(
            f"Give the DataLoader {enough} workers: num_workers={enough}.",
            _lines(workers, enough),
        ),
        severity=savings.severity(profile, saves),
        where=loading.line(profile),
        saves_ms=saves,
        reason=f"a step's samples take {units.milliseconds(work)} of the workers' time: {enough} "
        f"of them need {units.milliseconds(work / enough)}, the step without its wait "
        f"{units.milliseconds(training)}",
    )


def _lines(before: int, after: int) -> tuple[str, ...]:
    return savings.lines("in DataLoader(...)", f"num_workers={before}", f"num_workers={after}")


def _binds(
    profile: Profile, workers: int, room: int, busy: float, work: float
) -> Iterator[Diagnosis]:
    step, wait = profile.anatomy.step_ms, loading.steady_wait_ms(profile)
    share = loading.cores(profile) or room
    halved = HALF * work / min(workers, share)
    saves = savings.within(profile, min(wait, step - max(step - wait, halved)))
    if not savings.worth(profile, saves):
        return
    costly = loading.costliest_line(profile)
    yield Diagnosis(
        title=f"preparing samples binds: {workers} workers on {share} cores are busy",
        evidence=f"waits {units.milliseconds(wait)} of {units.milliseconds(step)} for the loader; "
        f"{workers} workers compute {units.share(min(busy, 1.0))} of their time"
        f"{_a_sample(profile, work)}{_most(costly)}",
        cure=Cure(
            "Make a sample cheaper: pictures stored at the size of training, a decoder that "
            "scales, a cache of decoded samples, or decoding on the GPU.",
            savings.lines(
                loading.line(profile),
                "",
                "loader = flatout.image_loader(folder, batch_size=...)  # decodes scaled, caches",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=str(costly.where) if costly is not None else loading.line(profile),
        saves_ms=saves,
        reason=f"at half the work a sample {workers} workers need {units.milliseconds(halved)} a "
        f"step, the rest of the step {units.milliseconds(step - wait)}",
    )


def _a_sample(profile: Profile, work_ms: float) -> str:
    samples = profile.seen.samples if profile.seen is not None else 0.0
    if samples <= 0:
        return ""
    cost = f"; a sample costs {units.milliseconds(work_ms / samples)}"
    rate = profile.ceiling("jpeg-decode-core")
    return f"{cost}, decoding a picture {units.milliseconds(1000 / rate)}" if rate else cost


def _most(line: HostLine | None) -> str:
    """The workers' costliest line, for the evidence."""
    if line is None:
        return ""
    package = f" in {line.package}" if line.package not in ("", "torch") else ""
    return f"; most of it {line.callee or line.where.source}{package} at {line.where}"
