"""WSL 1 has no GPU.

## What it sees

The process runs in the first version of the Windows Subsystem for Linux.

## Why it matters

WSL 1 translates Linux system calls and has no Linux kernel; a GPU cannot be reached from it. WSL 2
can use the GPU through the driver of Windows.

## Cure

Convert the distribution to WSL 2, from PowerShell on Windows.

## References

- https://learn.microsoft.com/windows/wsl/basic-commands
- https://docs.nvidia.com/cuda/wsl-user-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV013", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding in WSL 1."""
    if machine.container.wsl != 1:
        return
    torch = machine.torch
    built = f"; torch is built with CUDA {torch.cuda}" if torch and torch.cuda else ""
    yield Diagnosis(
        title="this is WSL 1: it cannot reach a GPU",
        evidence=f"WSL version 1, kernel release {machine.system.release or 'not known'}{built}",
        cure=Cure(
            "Convert this distribution to WSL 2: run the printed line in PowerShell on Windows. It "
            "takes some minutes and keeps the files.",
            (
                'echo "wsl --update; wsl --set-version $WSL_DISTRO_NAME 2"',
                "# After that, in WSL: /usr/lib/wsl/lib/nvidia-smi",
            ),
        ),
        severity=None if built else Severity.WARNING,
    )
