"""Copies between GPUs are far slower than their link.

## What it sees

A copy from one GPU to another gives less than half of the capacity of their NVLink in one
direction; without NVLink, less than a copy from the host.

## Why it matters

Gradients, activations of pipelines and shards of models go this way in each step.

## Cure

Look for NVLink that is down or unused (flatout doctor reports it), an IOMMU or PCIe access control
that sends copies through the host, or GPUs on different sockets.

## References

- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
- https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.ceilings.hw import shortfalls
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.ceiling import Benched, Ceiling
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW035", severity=Severity.WARNING, since="0.2.0")
LEAST_NVLINK = 0.5
LEAST_HOST = 0.6
"""Share of a pinned host copy's bandwidth; a copy through the host takes two of them."""


def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding."""
    copies = next(
        (ceiling for ceiling in benched.ceilings if ceiling.id == "copy-device-to-device"), None
    )
    if copies is None or copies.value is None or not copies.curve:
        return
    worst = min(copies.curve, key=lambda point: point.value)
    expected, reason = _expected(benched, copies, machine)
    if expected is None or worst.value >= expected:
        return
    yield Diagnosis(
        title=f"copies between GPUs: {worst.value:,.3g} GB/s from {worst.size}",
        evidence=f"worst pair {worst.size}: {worst.value:,.3g} GB/s, best pair {copies.best}: "
        f"{copies.value:,.3g} GB/s; {reason}",
        cure=Cure(
            "See how the GPUs are connected, whether links are down, and whether copies go through "
            "the host.",
            ("nvidia-smi topo -m", "nvidia-smi nvlink --status", "flatout doctor"),
        ),
    )


def _expected(benched: Benched, copies: Ceiling, machine: Machine) -> tuple[float | None, str]:
    """The least acceptable GB/s, or None if unknown, and the reason."""
    joined = any(pair.link == "nvlink" for pair in machine.gpu_pairs or ())
    if joined and copies.datasheet is not None:
        least = LEAST_NVLINK * copies.datasheet
        return least, f"NVLink carries {copies.datasheet:,.4g} GB/s in one direction"
    host = shortfalls.value(benched, "copy-host-to-device-pinned")
    if host is None:
        return None, ""
    host_rate = f"a copy from the host gives {host:,.3g} GB/s"
    return (
        LEAST_HOST * host,
        f"{host_rate} ({units.share(copies.value / host if copies.value else 0)})",
    )
