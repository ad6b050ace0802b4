"""An NVIDIA GPU is in this machine, and NVIDIA's driver is not installed.

## What it sees

Linux: an NVIDIA GPU is on the PCI bus, the `nvidia` module is not loaded, and there is no
`nvidia.ko` on disk for any kernel. Windows: the display adapter is NVIDIA's, and NVIDIA's driver
does not answer and has no version. Containers and WSL are left to ENV011 and ENV012: there the
driver belongs to the host.

## Why it matters

CUDA is part of the driver. Without it torch.cuda.is_available() is False, whatever build of torch
is installed, and everything runs on the CPU.

## Cure

Install the driver from the distribution (or NVIDIA's installer on Windows) and restart. No CUDA
toolkit is needed for torch's wheels: they bring CUDA's libraries along.

## References

- https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/
- https://www.nvidia.com/drivers/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV001", severity=Severity.ERROR, since="0.2.0", hides=("ENV019", "ENV025"))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if a GPU has no driver and none is installed."""
    evidence = _on_windows(machine) or _on_linux(machine)
    if evidence is None:
        return
    card = driver_state.waiting(machine)[0]
    where = "" if machine.system.name == "Windows" else ", and restart"
    yield Diagnosis(
        title=f"no NVIDIA driver for {driver_state.name(card)}"[:100],
        evidence=evidence,
        cure=Cure(
            f"Install NVIDIA's driver{where}. torch's wheels need no CUDA toolkit beside it.",
            driver.commands(driver_state.place(machine)),
        ),
    )


def _on_linux(machine: Machine) -> str | None:
    kernel = machine.kernel
    nowhere = kernel.nvidia_module_for == () and kernel.nvidia_module_on_disk is not True
    if not driver_state.module_missing(machine) or not nowhere:
        return None
    return (
        f"on the bus: {driver_state.names(driver_state.waiting(machine))}; loaded modules: "
        f"{driver_state.modules(machine)}; kernels with an nvidia.ko on disk: 0"
    )


def _on_windows(machine: Machine) -> str | None:
    cards = driver_state.waiting(machine)
    driver_facts = machine.driver("nvidia")
    if machine.system.name != "Windows" or not cards or machine.drivers is None:
        return None
    if any(card.driver_sees is not False for card in machine.gpus_of("nvidia")):
        return None
    if driver_facts is not None and (
        driver_facts.version is not None or driver_facts.nvml_error is None
    ):
        return None
    messages = driver_state.errors(driver_facts) or "no trace of a driver"
    return f"display adapter: {driver_state.names(cards)}; {messages}"
