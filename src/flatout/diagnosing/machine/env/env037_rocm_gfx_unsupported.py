"""The AMD GPU is not among the architectures that this ROCm build of torch holds.

## What it sees

The GPU's gfx number against torch's list of architectures, with the families that ROCm treats
alike taken into account.

## Why it matters

The first kernel ends with "HIP error: invalid device function" or a segmentation fault.

## Cure

If ROCm holds kernels for a close relative (gfx1030 for the rest of RDNA 2, gfx1100 for the rest of
RDNA 3), HSA_OVERRIDE_GFX_VERSION lets the GPU run them: AMD does not support it, but it usually
works. Else a torch built for this architecture.

## References

- https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html
- https://github.com/ROCm/rocBLAS/issues/1339
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV037", severity=Severity.ERROR, since="0.2.0")
VARIABLE = "HSA_OVERRIDE_GFX_VERSION"
RELATIVES = (
    (r"gfx103[1-6]", "gfx1030", "10.3.0"),
    (r"gfx110[1-3]", "gfx1100", "11.0.0"),
)
GENERIC = {
    "gfx9-generic": r"gfx90[0246c9]",
    "gfx9-4-generic": r"gfx94[0-2]|gfx950",
    "gfx10-1-generic": r"gfx101[0-3]",
    "gfx10-3-generic": r"gfx103[0-6]",
    "gfx11-generic": r"gfx110[0-3]|gfx115[0-3]",
    "gfx12-generic": r"gfx120[01]",
}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each architecture that is missing."""
    torch = machine.torch
    archs = tuple(_plain(arch) for arch in software.arch_list(machine))
    override = software.variable(machine, VARIABLE)
    if torch is None or not software.rocm_of(torch) or not archs or override:
        return
    gpus = {_plain(gpu.gfx): gpu for gpu in software.capable(machine, "amd") if gpu.gfx}
    for gfx, gpu in gpus.items():
        if not _supported(gfx, archs):
            yield Diagnosis(
                title=f"{software.label(torch)} has no kernels for {software.gpu_name(gpu)}",
                evidence=f"{software.gpu_name(gpu)} is {gfx}; this torch holds {' '.join(archs)}",
                cure=_cure(machine, gfx, archs),
            )


def _plain(gfx: str) -> str:
    """The name without the features after it, as in gfx90a:sramecc+:xnack-."""
    return gfx.partition(":")[0]


def _supported(gfx: str, archs: tuple[str, ...]) -> bool:
    families = (GENERIC[arch] for arch in archs if arch in GENERIC)
    return gfx in archs or any(re.fullmatch(family, gfx) for family in families)


def _cure(machine: Machine, gfx: str, archs: tuple[str, ...]) -> Cure:
    for pattern, relative, number in RELATIVES:
        if re.fullmatch(pattern, gfx) and relative in archs:
            lines = system_packages.variable(target.of(machine), VARIABLE, number)
            return Cure(f"Run the kernels of {relative}; AMD does not support this.", lines)
    return Cure(f"Install a torch built for {gfx}.", software.install_torch(machine))
