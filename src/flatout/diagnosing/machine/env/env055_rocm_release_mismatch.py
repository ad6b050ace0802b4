"""torch is built for another major release of ROCm than the one installed here.

## What it sees

The ROCm release of torch's build against the one on the system.

## Why it matters

torch's wheels bring ROCm's user-space part; the kernel driver comes from the system, and AMD
supports them two releases apart. Further apart torch may see no GPU, which makes this a warning; if
torch works it is a note, since extensions are then built with another ROCm than torch.

## Cure

Install the torch for this ROCm, or AMD's driver of torch's release.

## References

- https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/user-kernel-space-compat-matrix.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV055", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """A warning if torch sees no GPU, else a note."""
    torch, driver = machine.torch, machine.driver("amd")
    built_for = software.rocm_of(torch)
    installed = driver.rocm if driver else None
    built_major, installed_major = software.numbers(built_for, 1), software.numbers(installed, 1)
    if (
        torch is None
        or not machine.gpus_of("amd")
        or not built_major
        or not installed_major
        or built_major == installed_major
    ):
        return
    blind = torch.cuda_available is False
    sees = {True: "; torch sees a GPU", False: "; torch sees no GPU", None: ""}
    yield Diagnosis(
        title=f"{software.label(torch)} is for ROCm {built_for}, installed is {installed}",
        evidence=f"torch: ROCm {built_for}; system: ROCm {installed}{sees[torch.cuda_available]}",
        cure=Cure(
            f"Install the torch built for ROCm {installed_major[0]}, or AMD's driver for "
            f"{built_for}.",
            software.install_torch(machine),
        ),
        severity=Severity.WARNING if blind else Severity.NOTE,
    )
