"""Devices exchange data while nothing computes.

## What it sees

Collective communication of any kind (all-to-all, broadcast, all-gather, sends) takes 5% of the step
or more while no kernel computes, and no other check of communication explains it.

## Why it matters

Parts that are spread over devices (experts, embeddings, shards of the weights) wait for each other.
Sending while nothing computes is lost time on all of them.

## Cure

Start a collective as soon as its input is there (`async_op=True`) and wait for it where its result
is used, with computing in between; prefetch shards (FSDP2: `set_modules_to_forward_prefetch`); send
half of the bytes. No gain is predicted: the work that could run beside it is unknown.

## References

- https://docs.pytorch.org/docs/stable/distributed.html#collective-functions
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COMM007", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.05


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all collectives."""
    exposed = sum(collective.exposed_ms for collective in profile.collectives)
    step = profile.anatomy.step_ms
    if step <= 0 or exposed < LEAST_SHARE * step:
        return
    largest = ", ".join(
        f"{collective.name} {units.milliseconds(collective.exposed_ms)}"
        for collective in sorted(
            profile.collectives, key=lambda collective: -collective.exposed_ms
        )[:3]
    )
    yield Diagnosis(
        title=f"devices exchange data for {units.share(exposed / step)} of the step, while "
        "nothing computes",
        evidence=f"exposed: {largest}; of {units.milliseconds(step)}",
        cure=Cure(
            "Start collectives early and wait late, with computing in between.",
            savings.lines(
                None,
                "dist.all_to_all_single(out, x)",
                "work = dist.all_to_all_single(out, x, async_op=True)",
                "...  # what does not need out",
                "work.wait()",
            ),
        ),
    )
