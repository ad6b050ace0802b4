"""NCCL variables switch off the fast paths between the GPUs.

## What it sees

More than one GPU, and NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1, or NCCL_IB_DISABLE=1 with active
InfiniBand ports. P2P counts only if the GPUs have a direct path to each other.

## Why it matters

Without P2P and NVLink every gradient goes through main memory; without InfiniBand it goes through
TCP. All-reduce runs at a fraction of the bandwidth. Such settings are work-arounds for hangs, and
stay in place after the cause is gone.

## Cure

Unset it and measure again; if the job then hangs, the cause is the network or the IOMMU.

## References

- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV056", severity=Severity.WARNING, since="0.2.0")
DIRECT = ("nvlink", "internal", "single")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all variables."""
    count = max(len(machine.gpus_of("nvidia")), len(machine.gpus_of("amd")))
    if count < 2:
        return
    switched_off = {
        name: lost
        for name, lost in (
            ("NCCL_P2P_DISABLE", _direct(machine)),
            ("NCCL_SHM_DISABLE", "shared memory between the ranks of this machine"),
            ("NCCL_IB_DISABLE", _ports(machine)),
        )
        if lost and software.switched_on(software.variable(machine, name))
    }
    if not switched_off:
        return
    place = target.of(machine)
    yield Diagnosis(
        title=f"{', '.join(switched_off)} slows down {count} GPUs",
        evidence="; ".join(
            f"{name}={software.variable(machine, name)} switches off {lost}"
            for name, lost in switched_off.items()
        ),
        cure=Cure(
            "Unset it and measure again; if the job then hangs, look for that cause.",
            tuple(
                line
                for name in switched_off
                for line in system_packages.variable(place, name, None)
            ),
        ),
    )


def _direct(machine: Machine) -> str | None:
    links = sorted({pair.link for pair in machine.gpu_pairs or () if pair.link in DIRECT})
    names = {"nvlink": "NVLink", "internal": "the link on the board", "single": "the PCIe switch"}
    return ", ".join(names[link] for link in links) or None


def _ports(machine: Machine) -> str | None:
    active = [port for port in machine.network_ports or () if port.state == "active"]
    rate = sum(port.rate_gbit_per_s or 0 for port in active)
    return f"{len(active)} active ports ({rate:g} Gbit/s together)" if active else None
