"""Another program holds memory of a GPU.

## What it sees

Other programs on a GPU with together more than 5 % of its memory (at least 512 MiB). The desktop's
own programs are left out.

## Why it matters

Training cannot use the memory that they hold: "CUDA out of memory" comes early, and a batch size
found while they run is too small for later. Often it is a notebook or a crashed run that lives on.

## Cure

See whose it is and since when; end it if it is yours and forgotten, or use another GPU.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
- https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import GpuProcess
from flatout.nouns.machine import Machine

CHECK = Check(code="HW011", severity=Severity.WARNING, since="0.2.0")
LEAST = 512 * 2**20
SHARE = 0.05
DESKTOP = re.compile(
    r"(xorg|xwayland|gnome|kwin|plasma|cinnamon|mutter|sway|hyprland|weston|cosmic|sddm|gdm|lightdm"
    r"|firefox|chrom|edge|dwm\.exe|explorer\.exe|winlogon|code|slack|teams|discord|steam)",
    re.IGNORECASE,
)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding per GPU on which much is held."""
    for gpu in machine.gpus or ():
        programs = [process for process in gpu.processes or () if not _desktop(process)]
        held_bytes = sum(process.memory_bytes or 0 for process in programs)
        if held_bytes < max(LEAST, SHARE * (gpu.memory_bytes or 0)):
            continue
        whole = f" of {units.size(gpu.memory_bytes)}" if gpu.memory_bytes is not None else ""
        yield Diagnosis(
            title=f"{devices.label(gpu)}: {units.size(held_bytes)} held by other programs",
            evidence=f"{units.size(held_bytes)}{whole}: {', '.join(map(_facts, programs))}",
            cure=Cure(
                "See whose they are; end what is yours and forgotten.", _commands(machine, programs)
            ),
        )


def _desktop(process: GpuProcess) -> bool:
    name = re.split(r"[/\\]", process.name or "")[-1]
    return DESKTOP.match(name) is not None


def _facts(process: GpuProcess) -> str:
    memory = (
        units.size(process.memory_bytes) if process.memory_bytes is not None else "size unknown"
    )
    return f"{process.name or 'a program'} (process {process.pid}, {memory})"


def _commands(machine: Machine, programs: list[GpuProcess]) -> tuple[str, ...]:
    numbers = [process.pid for process in programs]
    if machine.system.name == "Windows":
        return (
            f"Get-Process -Id {','.join(map(str, numbers))} | Select-Object Id, Name, StartTime",
            *(f"# if it is yours: taskkill /PID {number}" for number in numbers),
        )
    looks = f"ps -o pid,user,lstart,args -p {','.join(map(str, numbers))}"
    return (looks, *(f"# if it is yours: kill {number}" for number in numbers))
