"""torch and its companion packages are of different releases.

## What it sees

torchvision and torchaudio of another torch release, and nvidia-* wheels in other versions than this
torch asks for. CUDA wheels of another major version for other packages do not clash and do not
count.

## Why it matters

torchvision and torchaudio are compiled against one torch release: with another one they fail with
"operator torchvision::nms does not exist" or undefined symbols. A CUDA library in another version
is untested: it has caused wrong results and slow kernels.

## Cure

Install the versions that belong together.

## References

- https://github.com/pytorch/vision#installation
- https://pytorch.org/get-started/previous-versions/
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import python_packages
from flatout.installing import pytorch as wheels
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Torch
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV051", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for torchvision and torchaudio, one for the CUDA wheels."""
    torch = machine.torch
    if torch is None or machine.interpreter is None or machine.interpreter.packages is None:
        return
    parts = list(_parts(machine, torch))
    if parts:
        place = software.torch_target(machine)
        pinned = tuple(f"{name}=={fits}.*" for name, _, fits in parts)
        if place.manager == "conda" or not torch.build:
            lines = wheels.package_commands(place, install=pinned)
        else:  # the index of torch's own build: torchvision is also built per CUDA
            options = ("--index-url", pytorch.index_url(torch.build))
            lines = python_packages.lines(place, pinned, options=options)
        names = ", ".join(name for name, _, _ in parts)
        yield Diagnosis(
            title=f"{names} of another release than {software.label(torch)}",
            evidence="; ".join(f"{name} {has}, fits: {fits}" for name, has, fits in parts),
            cure=Cure(
                "Install the versions that belong to this torch.",
                lines,
            ),
            severity=Severity.ERROR,
        )
    libraries = list(_libraries(machine, torch))
    if libraries:
        pins = tuple(f"{name}=={fits}" for name, _, fits in libraries)
        yield Diagnosis(
            title=software.shortened(
                f"CUDA libraries other than torch asks for: "
                f"{', '.join(name for name, _, _ in libraries)}"
            ),
            evidence="; ".join(
                f"{name} {has}, torch asks for {fits}" for name, has, fits in libraries
            ),
            cure=Cure(
                "Install the versions that torch was built with; what needed the others may break.",
                wheels.package_commands(software.torch_target(machine), install=pins),
            ),
        )


def _parts(machine: Machine, torch: Torch) -> Iterator[tuple[str, str, str]]:
    """The name, installed version and matching version of each part that does not match."""
    release = pytorch.release(torch.version) if torch.version else None
    if release is None:
        return
    for name, fits in (("torchvision", release.torchvision), ("torchaudio", release.torchaudio)):
        package = software.package(machine, name)
        has = package.version if package else None
        there = software.numbers(has)
        if has and fits and there and there != software.numbers(fits):
            yield name, has, fits


def _libraries(machine: Machine, torch: Torch) -> Iterator[tuple[str, str, str]]:
    for text in torch.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        package = software.package(machine, requirement.name.lower().replace("_", "-"))
        pins = [
            specifier.version for specifier in requirement.specifier if specifier.operator == "=="
        ]
        has = software.version(package.version) if package else None
        if not requirement.name.startswith("nvidia-") or not pins or package is None or has is None:
            continue
        if not requirement.specifier.contains(has, prereleases=True):
            yield package.name, str(has), pins[0]
