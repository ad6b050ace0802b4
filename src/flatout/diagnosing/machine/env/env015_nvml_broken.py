"""Only one of NVML and nvidia-smi works.

## What it sees

The driver answers one of the two and not the other: NVML (libnvidia-ml.so) fails while nvidia-smi
works, or the other way round.

## Why it matters

Both ask the same driver, so the GPU is fine. Without libnvidia-ml.so.1 NCCL cannot read how the
GPUs are connected and multi-GPU training may fail at its start; monitors that use NVML show
nothing: a warning. Without nvidia-smi only scripts that call it are affected: a note.

## Cure

Install the library or the tool of exactly the driver's version, from the driver's source. In a
container ask the container toolkit for it: NVIDIA_DRIVER_CAPABILITIES=compute,utility.

## References

- https://docs.nvidia.com/deploy/nvml-api/
- https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV015", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if exactly one of the two has an error, and the driver answered."""
    driver_facts = machine.driver("nvidia")
    if driver_facts is None or driver_facts.version is None or not driver_state.listed(machine):
        return
    if (driver_facts.nvml_error is None) == (driver_facts.smi_error is None):
        return
    nvml = driver_facts.nvml_error is not None
    fails, works = ("NVML", "nvidia-smi") if nvml else ("nvidia-smi", "NVML")
    hit = "NCCL and monitors may need it" if nvml else "the GPU is fine"
    yield Diagnosis(
        title=f"{fails} does not work, {works} does: {hit}",
        evidence=f"{driver_state.errors(driver_facts)}; driver {driver_facts.version} answers "
        f"{works} and lists {len(driver_state.listed(machine))} GPU(s)",
        cure=Cure(
            f"Put {'libnvidia-ml.so.1' if nvml else 'nvidia-smi'} of version "
            f"{driver_facts.version} in "
            "place: it comes with the driver.",
            _commands(driver_state.place(machine), nvml),
        ),
        severity=None if nvml else Severity.NOTE,
    )


def _commands(place: Target, nvml: bool) -> tuple[str, ...]:
    windows = place.system == "Windows"
    look = "ldconfig -p | grep libnvidia-ml" if nvml else "command -v nvidia-smi"
    if place.container:
        again = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
        return (look, f"# On the host, start the container again: {again}")
    if place.wsl:
        return (look, "ls -l /usr/lib/wsl/lib/", *driver.commands(place))
    return driver.commands(place) if windows else (look, *driver_state.repair(place))
