"""Preparing the samples takes more than all cores give: decoding binds the training.

## What it sees

The device waits for data, the loader has about as many workers as there are cores for it, and they
compute most of their time. More workers would not help.

## Why it matters

The cores cannot decode and augment as fast as the device trains. Only less work a sample helps, or
other hardware to do it.

## Cure

Decode less: store the pictures at the size that training needs, let the decoder scale
(`flatout.image_loader` does), keep decoded samples in a cache, or decode and augment on the GPU.
The predicted gain is that of samples that take half as long.

## References

- https://docs.pytorch.org/vision/stable/generated/torchvision.io.decode_jpeg.html
- https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.Image.draft
- https://docs.nvidia.com/deeplearning/dali/user-guide/docs/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostLine
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA007", severity=Severity.WARNING, since="0.2.0")
HALF = 0.5


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the training loader."""
    loader, room = loading.loader(profile), loading.room(profile)
    busy, work = loading.workers_busy(profile), loading.prepared_ms(profile)
    if loader is None or busy is None or work is None or room < 1:
        return
    if loader.num_workers < room or busy < loading.BUSY:
        return
    step, wait = profile.anatomy.step_ms, loading.steady_wait_ms(profile)
    share = loading.cores(profile) or room
    after = max(step - wait, HALF * work / min(loader.num_workers, share))
    saves = savings.within(profile, min(wait, step - after))
    if not savings.worth(profile, saves):
        return
    costly = loading.costliest_line(profile)
    yield Diagnosis(
        title=f"preparing samples binds: {loader.num_workers} workers on {share} cores are busy",
        evidence=f"waits {units.milliseconds(wait)} of {units.milliseconds(step)} for the loader; "
        f"{loader.num_workers} workers compute {units.share(min(busy, 1.0))} of their time"
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
        reason=f"at half the work a sample {loader.num_workers} workers need "
        f"{units.milliseconds(HALF * work / min(loader.num_workers, share))} a step, the rest of "
        f"the step {units.milliseconds(step - wait)}",
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
