"""WSL 2 has little memory: by default half of what Windows has.

## What it sees

The main memory of WSL 2 is below 16 GiB or below the memory of the largest GPU.

## Why it matters

WSL 2 is a virtual machine to which Windows gives half of its memory by default. Large checkpoints,
datasets and many loader workers are killed there, although Windows has memory to spare.

## Cure

Write a larger number into .wslconfig in the Windows home folder, and restart WSL.

## References

- https://learn.microsoft.com/windows/wsl/wsl-config
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV074", severity=Severity.WARNING, since="0.2.0", hides=("ENV064",))
GIB = 2**30
ENOUGH = 16 * GIB
ROUNDING = 0.93


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding in WSL 2 with little memory."""
    total = machine.memory.total_bytes
    if machine.container.wsl != 2 or total is None:
        return
    largest = max((gpu.memory_bytes or 0 for gpu in devices.own_memory(machine)), default=0)
    enough = max(ENOUGH, largest)
    if total >= enough * ROUNDING:
        return
    gibibytes = -(-enough * 5 // 4 // GIB)
    yield Diagnosis(
        title=f"WSL 2 has only {units.size(total)} of memory",
        evidence=f"main memory of WSL {units.size(total)}"
        + (f"; the GPU has {units.size(largest)}" if largest else ""),
        cure=Cure(
            f"If Windows has more than {gibibytes} GiB, give WSL {gibibytes} GiB; choose less "
            "otherwise. The last line ends this WSL session.",
            (
                "# Look first: a .wslconfig may have other settings under [wsl2]",
                'FILE="$(wslpath "$(cmd.exe /c "echo %USERPROFILE%" | tr -d \'\\r\')")/.wslconfig"',
                'cat "$FILE"',
                rf"""printf '[wsl2]\nmemory={gibibytes}GB\n' >> "$FILE" """.strip(),
                "wsl.exe --shutdown",
            ),
        ),
    )
