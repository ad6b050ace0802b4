"""The NVIDIA driver is too old for the CUDA that torch was built with.

## What it sees

The driver's version is below the oldest one on which programs of torch's CUDA release run,
including NVIDIA's minor-version compatibility: any CUDA 12.x build runs on the drivers from
525.60.13 (Linux) on, any 13.x on those from 580 on. If torch itself finds a GPU, nothing is
reported: a forward-compatibility package may be installed.

## Why it matters

torch says "The NVIDIA driver on your system is too old", finds no GPU, and runs on the CPU.

## Cure

Either install a newer driver, at least the version that is named; or, if the driver may not be
changed, install the newest torch build that runs on the present one.

## References

- https://docs.nvidia.com/deploy/cuda-compatibility/
- https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from packaging.version import InvalidVersion, Version

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver, pytorch
from flatout.installing.target import Target
from flatout.knowledge.compat import cuda
from flatout.nouns.errors import UserError
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV005", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for torch in the user's interpreter."""
    torch, driver_facts = machine.torch, machine.driver("nvidia")
    version = (driver_facts.version or driver_facts.kernel_version) if driver_facts else None
    if torch is None or torch.cuda is None or version is None or torch.cuda_available:
        return
    system = driver_state.versions_system(machine)
    needed = cuda.minimum_driver(torch.cuda, system)
    if needed is None or cuda.driver_runs(version, torch.cuda, system) is not False:
        return
    newest = cuda.newest_for_driver(version, system)
    facts = (
        f"driver {version}",
        f"torch {torch.version or 'of unknown version'} is built with CUDA {torch.cuda}, which "
        f"runs on {system} drivers from {needed} on",
        f"newest CUDA for this driver: {newest}" if newest else "",
        driver_state.torch_says(machine),
    )
    place = driver_state.place(machine)
    ways = []
    if _gpu_allows(machine, needed):
        ways.append((f"install driver {needed} or newer", driver.commands(place, at_least=needed)))
    if torch_way := _torch_for_driver(replace(place, release=torch.version)):
        ways.append(torch_way)
    yield Diagnosis(
        title=f"driver {version} is too old for torch's CUDA {torch.cuda}: it needs {needed}",
        evidence="; ".join(filter(None, facts)),
        cure=_cure(ways),
    )


def _torch_for_driver(place: Target) -> tuple[str, tuple[str, ...]] | None:
    """The build that runs on the present driver, or None if there is none or it is unknown."""
    try:
        choice = pytorch.choose(place)
        lines = pytorch.commands(place)
    except UserError:
        return None
    if choice.driver_needed is not None:
        return None
    return f"install torch {choice.version}+{choice.build}, which runs on the present driver", lines


def _gpu_allows(machine: Machine, needed: str) -> bool:
    """Whether the required driver branch still supports the GPUs."""
    capabilities = map(driver_state.capability, machine.gpus_of("nvidia"))
    lasts = [cuda.last_driver_branch(capability) for capability in capabilities if capability]
    try:
        return all(Version(last).major >= Version(needed).major for last in lasts if last)
    except InvalidVersion:
        return True


def _cure(ways: list[tuple[str, tuple[str, ...]]]) -> Cure:
    if not ways:
        return Cure(
            "No driver that still supports this GPU runs this torch, and no torch build in the "
            "tables runs on the present driver. Use the CPU, or a newer GPU.",
            ("nvidia-smi",),
        )
    if len(ways) == 1:
        way, lines = ways[0]
        return Cure(f"{way[0].upper()}{way[1:]}.", lines)
    (first, update), (second, alternative) = ways
    text = f"Either {first}; or {second}. One of the two is enough."
    return Cure(text, (f"# Either: {first}", *update, f"# Or: {second}", *alternative))
