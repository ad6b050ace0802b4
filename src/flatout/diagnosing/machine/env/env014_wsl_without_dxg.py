"""WSL 2 has no /dev/dxg, so the GPU of Windows cannot be reached.

## What it sees

The process runs in WSL 2, outside of a container, and the device file /dev/dxg does not exist.

## Why it matters

/dev/dxg is the only way from WSL 2 to the GPU. It is missing if the WSL kernel is older than
4.19.121 or self-built without it, if Windows is older than Windows 10 21H2, if the Windows driver
does not support WSL, or if /etc/wsl.conf switches the GPU off.

## Cure

Update WSL and the Windows driver, check /etc/wsl.conf, and restart WSL.

## References

- https://docs.nvidia.com/cuda/wsl-user-guide/
- https://learn.microsoft.com/windows/wsl/wsl-config
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(
    code="ENV014", severity=Severity.ERROR, since="0.2.0", hides=("ENV015", "ENV019", "ENV025")
)
OLDEST_KERNEL = (4, 19, 121)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding in WSL 2 without the device file."""
    files, place = machine.kernel.device_files, machine.container
    if place.wsl != 2 or place.kind is not None or files is None:
        return
    if any(file.path == "/dev/dxg" and file.exists for file in files):
        return
    torch, release = machine.torch, machine.system.release
    built = f"; torch is built with CUDA {torch.cuda}" if torch and torch.cuda else ""
    old = _older(release)
    yield Diagnosis(
        title="WSL 2 has no /dev/dxg: the GPU of Windows cannot be reached",
        evidence=f"/dev/dxg: missing; kernel release {release or 'not known'}"
        + (f", older than {'.'.join(map(str, OLDEST_KERNEL))}" if old else "")
        + built,
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
        severity=None if built else Severity.WARNING,
    )


def _older(release: str | None) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", release or "")
    return numbers is not None and tuple(map(int, numbers.groups())) < OLDEST_KERNEL
