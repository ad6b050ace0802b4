"""The loop empties torch's memory cache or saves checkpoints, and the device waits meanwhile.

## What it sees

On an accelerator: `torch.cuda.empty_cache()` or `torch.save` is called in (nearly) each step, or a
line that does so makes the host wait while the device has nothing else to do.

## Why it matters

Freeing memory waits for the device, and the next step has to ask the driver for it again, which
also waits. The cache costs nothing: torch reuses it. If memory runs out, the cache is not the
cause. A checkpoint's tensors are copied to the host and written to the disk before the next step
may begin.

## Cure

Leave `empty_cache()` out; against fragmentation:
`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. Save every few hundred steps, in the background:
`torch.distributed.checkpoint.async_save`, or `flatout.Checkpoint`. The gain: the idle time after
the calls, or their time on the host if only that is known.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings, stalls
from flatout.diagnosing.job.stalls import Stall
from flatout.nouns import units
from flatout.nouns.anatomy import WAITS
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="SYNC007", severity=Severity.WARNING, since="0.2.0")


@dataclass(frozen=True)
class Call:
    """A call for which the device waits, as the watched program names it."""

    name: str
    title: str
    """{times}: like 1.0 times a step."""
    cure: str
    lines: tuple[str, ...]
    """The line now, then what replaces it."""


CALLS: dict[Stall, Call] = {
    Stall.CACHE: Call(
        "torch.cuda.empty_cache",
        "torch's memory cache is emptied {times}",
        "Leave the call out: torch reuses its cache.",
        ("torch.cuda.empty_cache()",),
    ),
    Stall.SAVING: Call(
        "torch.save",
        "checkpoints are saved {times} while the device waits",
        "Save every 500 steps, in the background.",
        (
            "torch.save(model.state_dict(), path)",
            "if step % 500 == 0:",
            "    checkpoint.save(step)  # checkpoint = flatout.Checkpoint(folder, ...)",
        ),
    ),
}


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all calls of a kind."""
    if not savings.accelerated(profile):
        return
    for stall, call in CALLS.items():
        yield from _calls(profile, stall, call)


def _calls(profile: Profile, stall: Stall, call: Call) -> Iterator[Diagnosis]:
    syncs = stalls.of(profile, stall)
    seen = [
        one
        for one in (profile.seen.calls if profile.seen is not None else ())
        if one.name == call.name and one.calls >= stalls.EACH_STEP
    ]
    spent = sum(one.s for one in seen) * 1000
    idle = max(sum(sync.idle_ms for sync in syncs), min(spent, profile.anatomy.part(*WAITS)))
    saves = savings.within(profile, idle)
    if not (syncs or seen) or not savings.worth(profile, saves):
        return
    number = sum(one.calls for one in seen) or sum(sync.calls for sync in syncs)
    places = (str(sync.where) for sync in syncs if sync.where is not None)
    where = next((one.where for one in seen if one.where), None) or next(places, None)
    yield Diagnosis(
        title=call.title.format(times=f"{number:,.1f} times a step"),
        evidence=f"{call.name}: {number:,.1f} calls and {units.milliseconds(spent)} a step; the "
        f"device idle for {units.milliseconds(idle)}",
        cure=Cure(call.cure, savings.lines(where, *call.lines)),
        severity=savings.severity(profile, saves),
        where=where,
        saves_ms=saves,
        reason=f"{units.milliseconds(saves)} of a step in which the device waits for these calls",
    )
