"""InfiniBand and NVIDIA GPUs cannot exchange data directly: nvidia_peermem is not loaded.

## What it sees

On Linux, an InfiniBand or RoCE port is active, there are NVIDIA data-center GPUs, and the kernel
module nvidia_peermem is not loaded. With NVIDIA's open kernel module it is a note, because there
dma-buf can do the same.

## Why it matters

GPUDirect RDMA lets the network card read GPU memory itself. Without it every byte between machines
is first copied to main memory: less bandwidth and more latency for NCCL.

## Cure

Load nvidia_peermem now and at every start. It comes with NVIDIA's driver and needs the RDMA stack
to be there when it is built.

## References

- https://docs.nvidia.com/cuda/gpudirect-rdma/
- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.driver_state import on_host
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV072", severity=Severity.WARNING, since="0.2.0")
MODULES = ("nvidia_peermem", "nv_peer_mem")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if the module is known to be missing."""
    loaded = machine.kernel.modules
    active = [port.name for port in machine.network_ports or () if port.state == "active"]
    gpus = [gpu for gpu in machine.gpus_of("nvidia") if devices.data_center(gpu)]
    if loaded is None or "nvidia" not in loaded or not active or not gpus:
        return
    if any(module in loaded for module in MODULES) or machine.system.name != "Linux":
        return
    driver = machine.driver("nvidia")
    is_open = driver.open_kernel_module if driver else None
    yield Diagnosis(
        title="nvidia_peermem is not loaded: no GPUDirect RDMA through it",
        evidence=f"active ports: {', '.join(active)}; {len(gpus)} x {gpus[0].name}; loaded: "
        f"{', '.join(loaded)}; {_kind(is_open)}",
        cure=Cure(_text(is_open), _commands(machine)),
        severity=Severity.WARNING if is_open is False else Severity.NOTE,
    )


def _kind(is_open: bool | None) -> str:
    if is_open is None:
        return "kind of NVIDIA's kernel module not known"
    return f"NVIDIA's {'open' if is_open else 'proprietary'} kernel module"


def _text(is_open: bool | None) -> str:
    load = "Load the module now and at every start."
    if is_open is False:
        return load
    return f"{load} NCCL may use dma-buf instead: NCCL_DEBUG=INFO then says GDRDMA on each channel."


def _commands(machine: Machine) -> tuple[str, ...]:
    place = target.of(machine)
    file = system_packages.sudo(place, "tee /etc/modules-load.d/nvidia-peermem.conf")
    return on_host(
        place,
        (
            system_packages.sudo(place, "modprobe nvidia_peermem"),
            f"echo nvidia_peermem | {file}",
        ),
    )
