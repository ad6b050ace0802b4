"""Other programs use a GPU: they compute on it, or hold its memory.

## What it sees

- Other programs on a GPU with together more than 5 % of its memory (at least 512 MiB), without the
  desktop's own: a warning.
- A GPU that is busy by 30 % or more (80 % if it may drive a screen: an idle card that draws a
  desktop at low clocks looks busy) over the driver's last sampling period, while flatout itself
  computes nothing: a warning.
- A display is connected to it, and more than 10 % of its memory is in use besides programs that
  compute: a note.

## Why it matters

Training cannot use the memory that others hold: "CUDA out of memory" comes early, and a batch size
found while they run is too small for later. What desktop, browsers and video take varies: the same
job fits today and not tomorrow. Programs that compute on one GPU take turns: training gets a share
of it, and whatever is measured now is wrong. Windows ends kernels that run longer than two seconds
on a card with a screen.

## Cure

See whose it is and since when; often it is a notebook or a crashed run that lives on. End it if it
is yours and forgotten, wait, or use another GPU. Close browsers, plug the screen into the
processor's own graphics if it has one, or log out of the desktop and train over the network.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/index.html
- https://docs.pytorch.org/docs/stable/notes/cuda.html
- https://learn.microsoft.com/windows-hardware/drivers/display/timeout-detection-and-recovery
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.driver_state import on_metal
from flatout.installing import system_packages, target
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu, GpuProcess
from flatout.nouns.machine import Machine

CHECK = Check(code="HW011", severity=Severity.WARNING, since="0.2.0")
LEAST_HELD = 512 * 2**20
SHARE_HELD = 0.05
SHARE_OF_SCREEN = 0.10
BUSY = 0.30
BUSY_BESIDE_A_SCREEN = 0.80
NAMES = 4
DESKTOP = re.compile(
    r"(xorg|xwayland|gnome|kwin|plasma|cinnamon|mutter|sway|hyprland|weston|cosmic|sddm|gdm|lightdm"
    r"|firefox|chrom|edge|dwm\.exe|explorer\.exe|winlogon|code|slack|teams|discord|steam)",
    re.IGNORECASE,
)
COMPUTES = re.compile(r"python|jupyter|ollama|vllm|llama|tritonserver", re.IGNORECASE)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding per GPU with held memory, one for all busy GPUs, one per GPU with a screen."""
    gpus = machine.gpus or ()
    for gpu in gpus:
        yield from _held(machine, gpu)
    busy = [gpu for gpu in gpus if _busy(gpu)]
    if busy:
        yield Diagnosis(
            title=f"{devices.subject(busy)}: busy with other programs now",
            evidence=devices.facts(busy, _load),
            cure=Cure(
                "Wait, or use an idle GPU: what is measured beside other programs is wrong.",
                _idle_ones(machine, busy[0].vendor),
            ),
        )
    for gpu in devices.own_memory(machine):
        yield from _screen(machine, gpu)


def _held(machine: Machine, gpu: Gpu) -> Iterator[Diagnosis]:
    programs = [process for process in gpu.processes or () if not _of_desktop(process)]
    held_bytes = sum(process.memory_bytes or 0 for process in programs)
    if held_bytes < max(LEAST_HELD, SHARE_HELD * (gpu.memory_bytes or 0)):
        return
    whole = f" of {units.size(gpu.memory_bytes)}" if gpu.memory_bytes is not None else ""
    numbers = [process.pid for process in programs]
    listed = ",".join(map(str, numbers))
    look, end = f"ps -o pid,user,lstart,args -p {listed}", "kill"
    if machine.system.name == "Windows":
        look = f"Get-Process -Id {listed} | Select-Object Id, Name, StartTime"
        end = "taskkill /PID"
    yield Diagnosis(
        title=f"{devices.label(gpu)}: {units.size(held_bytes)} held by other programs",
        evidence=f"{units.size(held_bytes)}{whole}: {', '.join(map(_process, programs))}",
        cure=Cure(
            "See whose they are; end what is yours and forgotten.",
            (look, *(f"# if it is yours: {end} {number}" for number in numbers)),
        ),
    )


def _of_desktop(process: GpuProcess) -> bool:
    name = re.split(r"[/\\]", process.name or "")[-1]
    return DESKTOP.match(name) is not None


def _process(process: GpuProcess) -> str:
    known = process.memory_bytes is not None
    memory = units.size(process.memory_bytes) if known else "size unknown"
    return f"{process.name or 'a program'} (process {process.pid}, {memory})"


def _busy(gpu: Gpu) -> bool:
    least = BUSY if gpu.display is False or devices.data_center(gpu) else BUSY_BESIDE_A_SCREEN
    return gpu.utilization is not None and gpu.utilization >= least


def _load(gpu: Gpu) -> str:
    parts = [f"load {units.share(gpu.utilization)}"]
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:g} W")
    names = [f"{process.name or 'a program'} ({process.pid})" for process in gpu.processes or ()]
    parts.append(", ".join(names[:NAMES]) or "its programs cannot be seen from here")
    return ", ".join(parts)


def _idle_ones(machine: Machine, vendor: str) -> tuple[str, ...]:
    if vendor not in ("nvidia", "amd"):
        return ()
    idle = [
        str(gpu.index)
        for gpu in machine.gpus_of(vendor)
        if gpu.index is not None and gpu.utilization is not None and gpu.utilization < BUSY
    ]
    look = "nvidia-smi" if vendor == "nvidia" else "rocm-smi"
    return (look, *devices.only(machine, vendor, idle)) if idle else (look,)


def _screen(machine: Machine, gpu: Gpu) -> Iterator[Diagnosis]:
    used, whole = gpu.memory_used_bytes, gpu.memory_bytes
    if gpu.display is not True or used is None or not whole or gpu.processes is None:
        return
    computing = sum(
        process.memory_bytes or 0
        for process in gpu.processes
        if COMPUTES.search(process.name or "")
    )
    if used - computing <= SHARE_OF_SCREEN * whole:
        return
    lines: tuple[str, ...] = ()
    if on_metal(machine):
        stop = system_packages.sudo(target.of(machine), "systemctl isolate multi-user.target")
        lines = ("nvidia-smi", f"# without desktop, from a text console or over ssh: {stop}")
    yield Diagnosis(
        title=f"{devices.label(gpu)}: the screen takes {units.size(used - computing)}",
        evidence=f"{units.size(used)} of {units.size(whole)} in use, {units.size(computing)} "
        "of it by programs that compute; a display is connected to it",
        cure=Cure(
            "Close browsers, use the processor's graphics for the screen, or stop the desktop "
            "while training (this ends the session on the screen).",
            lines,
        ),
        severity=Severity.NOTE,
    )
