"""The NVIDIA module in the kernel and the driver's libraries have different versions.

## What it sees

NVML or nvidia-smi says "Driver/library version mismatch", or NVML does not answer and the loaded
module's version differs from that of libcuda.so; or CUDA itself says that it is an "unsupported
display driver / cuda driver combination". A newer libcuda.so beside an NVML that works is no
mismatch: that is how CUDA's forward-compatibility packages look.

## Why it matters

Module and libraries share a private interface that changes with every version. Nothing on the GPU
works until they match: no nvidia-smi, no CUDA. It happens when the driver is updated (often by
unattended updates) and the old module stays loaded.

## Cure

Load the new module: stop programs that use the GPU, unload the old one and load the new one; or
simply restart. If the module on disk also differs from the library, reinstall the driver. In a
container the library must come from the host: remove the one in the image, or restart the container
after the host's driver was updated.

## References

- https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
- https://docs.nvidia.com/deploy/cuda-compatibility/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Driver
from flatout.nouns.machine import Machine

CHECK = Check(
    code="ENV004",
    severity=Severity.ERROR,
    since="0.2.0",
    hides=("ENV005", "ENV019", "ENV025"),
)
COMBINATION = "unsupported display driver / cuda driver combination"


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the driver."""
    driver_facts = machine.driver("nvidia")
    if driver_facts is None or machine.container.wsl or not _mismatch(machine, driver_facts):
        return
    place = driver_state.place(machine)
    pair = (driver_facts.kernel_version, driver_facts.library_version)
    title = f"NVIDIA's module is {pair[0]}, its library {pair[1]}: no CUDA until they are the same"
    text, commands = _cure(place, driver_facts)
    versions = {
        "module loaded": driver_facts.kernel_version,
        "module on disk": driver_facts.installed_version,
        "libcuda": driver_facts.library_version,
    }
    facts = [f"{part} {version}" for part, version in versions.items() if version]
    messages = (driver_state.errors(driver_facts), driver_state.torch_says(machine))
    yield Diagnosis(
        title=title if all(pair) and pair[0] != pair[1] else "NVIDIA's module and library differ",
        evidence="; ".join(filter(None, (*facts, *messages))),
        cure=Cure(text, commands),
    )


def _mismatch(machine: Machine, driver_facts: Driver) -> bool:
    messages = f"{driver_facts.nvml_error or ''} {driver_facts.smi_error or ''}".lower()
    torch = machine.torch
    if "version mismatch" in messages or COMBINATION in ((torch and torch.cuda_error) or ""):
        return True
    differ = None not in (driver_facts.kernel_version, driver_facts.library_version) and (
        driver_facts.kernel_version != driver_facts.library_version
    )
    return differ and driver_facts.nvml_error is not None and not driver_state.listed(machine)


def _cure(place: Target, driver_facts: Driver) -> tuple[str, tuple[str, ...]]:
    if place.container:
        return (
            "The library must be the host's. Restart the container (it keeps the libraries of "
            "the driver that it was started under); if that does not help, remove the NVIDIA "
            "driver packages from the image.",
            (
                "# On the host: docker restart CONTAINER",
                "ldconfig -p | grep -E 'libcuda.so|libnvidia-ml.so'",
            ),
        )
    on_disk = driver_facts.installed_version
    if on_disk and driver_facts.library_version and on_disk != driver_facts.library_version:
        return (
            f"A restart does not help: on disk too, the module is {on_disk} and the library "
            f"{driver_facts.library_version}. Reinstall the driver, from one source only.",
            driver.commands(place),
        )
    return (
        "The driver was updated and the old module is still loaded. Load the new one (programs on "
        "the GPU must end first), or restart.",
        driver.reload_commands(place),
    )
