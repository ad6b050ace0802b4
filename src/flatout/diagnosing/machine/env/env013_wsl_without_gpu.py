"""The GPU of Windows cannot be reached from this WSL.

## What it sees

The process runs in WSL 1; or in WSL 2, outside of a container, and the device file /dev/dxg does
not exist. For a torch that is not built for CUDA it is a warning.

## Why it matters

WSL 1 translates Linux system calls and has no Linux kernel; a GPU cannot be reached from it. From
WSL 2 the only way to the GPU is /dev/dxg. It is missing if the WSL kernel is older than 4.19.121 or
self-built without it, if Windows is older than Windows 10 21H2, if the Windows driver does not
support WSL, or if /etc/wsl.conf switches the GPU off.

## Cure

Convert a distribution of WSL 1 to WSL 2, from PowerShell on Windows. In WSL 2 update WSL and the
Windows driver, check /etc/wsl.conf, and restart WSL.

## References

- https://learn.microsoft.com/windows/wsl/basic-commands
- https://learn.microsoft.com/windows/wsl/wsl-config
- https://docs.nvidia.com/cuda/wsl-user-guide/
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV013", severity=Severity.ERROR, since="0.2.0", hides=("ENV019", "ENV025"))
OLDEST_KERNEL = (4, 19, 121)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding, by the version of WSL."""
    files, place = machine.kernel.device_files, machine.container
    if place.wsl == 1:
        yield _first_version(machine)
    if place.wsl != 2 or place.kind is not None or files is None:
        return
    if not any(file.path == "/dev/dxg" and file.exists for file in files):
        yield _no_device(machine)


def _first_version(machine: Machine) -> Diagnosis:
    release = machine.system.release or "not known"
    return Diagnosis(
        title="this is WSL 1: it cannot reach a GPU",
        evidence=f"WSL version 1, kernel release {release}{_built(machine)}",
        cure=Cure(
            "Convert this distribution to WSL 2: run the printed line in PowerShell on Windows. It "
            "takes some minutes and keeps the files.",
            (
                'echo "wsl --update; wsl --set-version $WSL_DISTRO_NAME 2"',
                "# After that, in WSL: /usr/lib/wsl/lib/nvidia-smi",
            ),
        ),
        severity=None if _built(machine) else Severity.WARNING,
    )


def _no_device(machine: Machine) -> Diagnosis:
    release = machine.system.release
    old = f", older than {'.'.join(map(str, OLDEST_KERNEL))}" if _older(release) else ""
    return Diagnosis(
        title="WSL 2 has no /dev/dxg: the GPU of Windows cannot be reached",
        evidence=f"/dev/dxg: missing; kernel release {release or 'not known'}{old}"
        f"{_built(machine)}",
        cure=Cure(
            "Update WSL and, on Windows, NVIDIA's driver; see that /etc/wsl.conf does not say "
            "enabled=false under [gpu]. The last line ends this WSL session.",
            (
                "grep -n -A2 '^\\[gpu\\]' /etc/wsl.conf",
                "wsl.exe --update",
                *driver.commands(target.of(machine)),
                "wsl.exe --shutdown",
            ),
        ),
        severity=None if _built(machine) else Severity.WARNING,
    )


def _built(machine: Machine) -> str:
    """For the evidence: the CUDA that torch is built with, or empty if none."""
    torch = machine.torch
    return f"; torch is built with CUDA {torch.cuda}" if torch and torch.cuda else ""


def _older(release: str | None) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", release or "")
    return numbers is not None and tuple(map(int, numbers.groups())) < OLDEST_KERNEL
