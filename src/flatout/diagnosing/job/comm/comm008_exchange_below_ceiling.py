"""Messages between ranks are far slower than the link allows.

## What it sees

The fastest of the job's large all-reduces reaches less than half of the bus bandwidth that
`flatout bench` measured here over as many ranks, and 3% of the step or more is exposed
communication.

## Why it matters

Time in a collective is waiting for the last rank, or sending. The fastest message waited least: if
even it is slow, the data take a slower way than they could, through host memory or the network
instead of NVLink. On a CPU the exchange shares its cores with the computing, which also costs time.

## Cure

GPUs: see which way NCCL takes (`NCCL_DEBUG=INFO` prints P2P, SHM or NET for each channel) and what
the links are (`nvidia-smi topo -m`); unset variables that switch fast ways off (`NCCL_P2P_DISABLE`,
`NCCL_SHM_DISABLE`). Ranks on several machines: their network is the ceiling, so send fewer bytes.
CPU: fewer threads for computing, so that a core is left for the exchange. The gain: the exposed
time that these bytes would not take at the ceiling.

## References

- https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.comm import communication
from flatout.nouns import bus, units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Collective, Profile

CHECK = Check(code="COMM008", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.03
REACHED = 0.5


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the all-reduces."""
    for collective in communication.reduced(profile):
        reached, ranks = collective.bus_gb_per_s, collective.ranks
        if reached is None or ranks is None or not collective.bytes:
            continue
        ceiling = communication.bandwidth_gb_per_s(profile, ranks)
        if ceiling is None or reached >= REACHED * ceiling:
            continue
        if collective.exposed_ms >= LEAST_SHARE * profile.anatomy.step_ms:
            yield from _slow(profile, collective, ranks, reached, ceiling)


def _slow(
    profile: Profile, collective: Collective, ranks: int, reached: float, ceiling: float
) -> Iterator[Diagnosis]:
    sent = (bus.share("all_reduce", ranks) or 0.0) * (collective.bytes or 0.0) / 1e6
    needless = min(collective.ms, sent / reached) - sent / ceiling
    saves = savings.within(profile, min(collective.exposed_ms, needless))
    if not savings.worth(profile, saves):
        return
    yield Diagnosis(
        title=f"all-reduces reach {reached:.1f} GB/s of the {ceiling:.1f} GB/s measured here",
        evidence=f"bus bandwidth of the fastest large message over {ranks} ranks: {reached:.2f} "
        f"GB/s; flatout bench: {ceiling:.2f} GB/s; {units.milliseconds(collective.exposed_ms)} "
        "of communication exposed",
        cure=_cure(profile),
        severity=savings.severity(profile, saves),
        saves_ms=saves,
        reason=f"{units.size(collective.bytes or 0.0)} at {ceiling:.1f} instead of {reached:.1f} "
        "GB/s, as far as it is exposed",
    )


def _cure(profile: Profile) -> Cure:
    if savings.accelerated(profile):
        return Cure(
            "See which way the data take, and switch fast ways on again.",
            ("NCCL_DEBUG=INFO python train.py  # P2P, SHM or NET?", "nvidia-smi topo -m"),
        )
    return Cure(
        "Leave a core to the exchange: fewer threads for computing on each rank.",
        ("OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node=2 train.py",),
    )
