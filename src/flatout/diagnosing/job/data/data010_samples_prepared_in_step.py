"""The training thread prepares the batches itself, and that takes a large part of the step.

## What it sees

Training on a CPU or an accelerator with a loader without workers: in sampled stacks, lines of the
data set, its transforms or `collate_fn`, and the packages that they call (decoding pictures,
tokenising, NumPy), for 8 % of the step or more. The loader's own collating is not counted.

## Why it matters

While a sample is decoded or transformed, nothing trains.

## Cure

Do work that gives the same for a sample in each epoch (decoding, resizing, tokenising) once, before
training, or keep its result from the first epoch: the boost image-cache keeps decoded pictures,
sample-cache keeps samples that are the same each time. Search in a set instead of a list. Leave
random work to workers if there are cores for them (DATA001). The gain: nine tenths of the time of
work whose result can be kept.

## References

- https://docs.pytorch.org/docs/stable/data.html
- https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.Image.draft
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, loading, savings
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA010", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.08
KEPT = 0.9
PICTURES = ("PIL", "cv2", "skimage", "imageio", "torchvision")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the costliest function of the data set."""
    facts = loading.loader(profile)
    step_ms = profile.anatomy.step_ms
    has_workers = facts is not None and facts.num_workers > 0
    if profile.host is None or has_workers or step_ms <= 0:
        return
    kinds = (HostKind.PYTHON, HostKind.LIBRARY, HostKind.TORCH, HostKind.WAITING)
    lines = host_lines.of(profile, *kinds, loading=True)
    groups = host_lines.by_function(profile, [line for line in lines if not line.collating])
    total_ms = sum(group.ms for group in groups)
    if not groups or total_ms < LEAST_SHARE * step_ms:
        return
    group = groups[0]
    if group.samples < host_lines.LEAST_SAMPLES:
        return
    yield _diagnosis(profile, group, total_ms)


def _diagnosis(profile: Profile, group: LineGroup, total_ms: float) -> Diagnosis:
    saves = savings.within(profile, KEPT * group.ms)
    packages = {line.package for line in group.lines}
    decoding = bool(packages & set(PICTURES))
    share = units.share(total_ms / profile.anatomy.step_ms)
    return Diagnosis(
        title=f"preparing batches in the training thread takes {units.milliseconds(total_ms)}, "
        f"{share} of the step",
        evidence=f"{group.where.function}() {units.milliseconds(group.ms)}: "
        f"{host_lines.evidence(profile, group)}",
        cure=Cure(
            "Decode once and keep the pictures, or decode smaller (Image.draft); else prepare "
            "batches in workers."
            if decoding
            else "Do once what gives the same in each epoch, and keep it; prepare the rest in the "
            "loader's workers.",
            savings.lines(
                group.where,
                group.where.source,
                "# once, in __init__, or kept from the first epoch on",
                "# else: DataLoader(..., num_workers=2, persistent_workers=True)",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=str(group.where),
        boost=savings.boost(profile, "image-cache" if decoding else "sample-cache"),
        saves_ms=saves,
        reason=f"nine tenths of {units.milliseconds(group.ms)} in {group.where.function}(), "
        "done once instead of in each step",
    )
