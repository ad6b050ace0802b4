"""The loader gives one sample at a time, and the script makes batches of them by hand.

## What it sees

A DataLoader with `batch_size=1` (the default) or `batch_size=None`, of which a step takes eight
samples or more for one training call of the model.

## Why it matters

For each batch the loader asks its sampler, collates, and with workers sends it through a queue.
Batches of one sample cost as much of this as whole ones, many times a step, and joining them
afterwards copies each sample once more.

## Evidence

How many single samples a step takes, and the time in the loader's own code.

## Cure

`batch_size=N` in the DataLoader and no joining by hand. The gain: the loader's own time for all
but one of these batches, or half of the step's wait for data if that time is unknown.

## References

- https://docs.pytorch.org/docs/stable/data.html#loading-batched-and-non-batched-data
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, host_lines, loading, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostKind, HostLine, total_ms
from flatout.nouns.profile import Profile

CHECK = Check(code="DATA012", severity=Severity.WARNING, since="0.2.0")
LEAST = 8
"""Single samples a step."""
ONE_CALL = 1.5
"""Training calls or backward passes a step that still count as one."""
KEPT = 0.8
"""Share of the loader's own time saved; one larger batch still takes the rest."""
UNKNOWN = 0.5
"""Share of the step's waiting saved, if the loader's own time is unknown."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loader that feeds the training."""
    samples = _singles(profile)
    if samples < LEAST or not _one_call(profile, samples):
        return
    own = [line for line in host_lines.of(profile, *HostKind, loading=True) if line.collating]
    saves, words = _saved_ms(profile, own)
    saving = device_time.of_step(profile, saves, words)
    if not saving.worth:
        return
    where = _where(profile, own)
    yield Diagnosis(
        title=f"the loader gives single samples, {samples:.0f} a step, which are joined by hand",
        evidence=f"batch_size of the DataLoader is {_size(profile)}; a step takes "
        f"{samples:.0f} of its batches for one training call; {words}",
        cure=Cure(
            "Let the loader make the batch, and do not join samples by hand.",
            savings.lines(
                where,
                "loader = DataLoader(dataset, shuffle=True)",
                f"loader = DataLoader(dataset, batch_size={samples:.0f}, shuffle=True)",
            ),
        ),
        severity=saving.severity,
        where=where,
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _size(profile: Profile) -> int | None:
    facts = loading.loader(profile)
    return facts.batch_size if facts is not None else None


def _singles(profile: Profile) -> float:
    """Batches of one sample that a step takes; 0 if the loader makes others or it is unsure."""
    facts, watched, seen = loading.loader(profile), profile.seen, flow.of(profile)
    if facts is None or watched is None or facts.batch_size not in (1, None):
        return 0.0
    if facts.batch_size is None and facts.iterable:
        return 0.0
    if seen is not None:
        return seen.batches
    only = profile.job is not None and len(profile.job.loaders) == 1
    return watched.samples if only and facts.batch_size == 1 else 0.0


def _one_call(profile: Profile, samples: float) -> bool:
    """Whether the model is called once for all samples: it gets at least half of them at once."""
    job, seen = profile.job, flow.of(profile)
    if job is None or job.micro_steps > ONE_CALL:
        return False
    if seen is not None and seen.training_calls > ONE_CALL:
        return False
    shapes = [shape for model in job.models for shape in model.input_shapes]
    rows = [int(shape.partition("x")[0]) for shape in shapes if shape.partition("x")[0].isdigit()]
    return max(rows, default=0) >= max(LEAST, samples / 2)


def _saved_ms(profile: Profile, own: list[HostLine]) -> tuple[float, str]:
    facts, waited = loading.loader(profile), loading.waited_ms(profile)
    loaders_ms = host_lines.scale(profile) * total_ms(own)
    if loaders_ms > 0 and facts is not None and facts.num_workers == 0:
        saves = KEPT * min(loaders_ms, waited or loaders_ms)
        return saves, (
            f"the loader's own code takes {units.milliseconds(loaders_ms)} of the step, of which "
            f"{units.share(KEPT)} is taken to go"
        )
    return UNKNOWN * waited, (
        f"the step waits {units.milliseconds(waited)} for the loader, of which "
        f"{units.share(UNKNOWN)} is taken to go"
    )


def _where(profile: Profile, own: list[HostLine]) -> str | None:
    """The line that makes the loader, else the line that takes the samples."""
    watched = profile.seen
    if watched is not None and watched.single_loader_where:
        return watched.single_loader_where
    costliest = max(own, key=lambda line: line.ms, default=None)
    return str(costliest.where) if costliest is not None else loading.line(profile)
