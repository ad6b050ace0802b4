"""NVIDIA's module is loaded, but one of its device files is missing.

## What it sees

The `nvidia` module is loaded, and /dev/nvidiactl, /dev/nvidia-uvm or a /dev/nvidiaN does not exist.
In a container the numbered files are not looked at: it may have been given some GPUs only. Where
torch finds its GPU, nothing is reported.

## Why it matters

Without /dev/nvidia-uvm nvidia-smi works and CUDA does not: torch says "CUDA unknown error - this
may be due to an incorrectly set up environment". Without the others the driver cannot be reached at
all. The setuid program nvidia-modprobe creates the files at first use; some distributions package
it separately, and it does not work in a container.

## Cure

Load nvidia_uvm and create the files with nvidia-modprobe, and do the same at each boot. For a
container, do it on the host and restart the container.

## References

- https://github.com/NVIDIA/nvidia-modprobe
- https://docs.nvidia.com/cuda/cuda-installation-guide-linux/
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(
    code="ENV007",
    severity=Severity.ERROR,
    since="0.2.0",
    hides=("ENV019", "ENV025"),
)

UVM = "/dev/nvidia-uvm"


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all the files together."""
    paths = _missing_files(machine)
    place = target.of(machine)
    severity = _severity(machine, paths)
    if severity is None:
        return
    uvm = "nvidia_uvm" in (machine.kernel.modules or ())
    message = driver_state.torch_says(machine)
    first = "CUDA cannot start" if severity is Severity.ERROR else "CUDA needs it at start-up"
    yield Diagnosis(
        title=f"{paths[0]} is missing: {first}",
        evidence=f"missing: {', '.join(paths)}; module nvidia is loaded, nvidia_uvm is "
        f"{'loaded' if uvm else 'not loaded'}" + (f"; {message}" if message else ""),
        cure=Cure(
            "Load nvidia_uvm and create the device files, now and at each boot. Where the command "
            "nvidia-modprobe is missing, install the package of that name.",
            driver_state.on_host(
                place,
                (
                    system_packages.sudo(place, "modprobe nvidia_uvm"),
                    system_packages.sudo(place, "nvidia-modprobe -u -c=0"),
                    "printf 'nvidia\\nnvidia_uvm\\n' | "
                    + system_packages.sudo(place, "tee /etc/modules-load.d/nvidia-uvm.conf"),
                    "ls -l /dev/nvidia*",
                ),
            ),
        ),
        severity=severity,
    )


def _missing_files(machine: Machine) -> list[str]:
    inside = machine.container.kind is not None
    names = re.compile(r"/dev/nvidia(ctl|-uvm)" if inside else r"/dev/nvidia(\d+|ctl|-uvm)")
    files = [file for file in machine.kernel.device_files or () if names.fullmatch(file.path)]
    nothing = inside and not any(file.exists for file in files)
    if machine.container.wsl or nothing or not driver_state.loaded(machine):
        return []
    paths = [file.path for file in files if not file.exists]
    # Without nvidia_uvm loaded, its file need not exist.
    unlisted = bool(files) and all(file.path != UVM for file in files)
    failed = driver_state.cuda_works(machine) is False
    return [*paths, UVM] if unlisted and failed else paths


def _severity(machine: Machine, paths: list[str]) -> Severity | None:
    """The severity, or None if there is nothing to report."""
    works = driver_state.cuda_works(machine)
    if not paths or not machine.gpus_of("nvidia") or works:
        return None
    if works is False or any(not path.endswith("-uvm") for path in paths):
        return Severity.ERROR
    return Severity.NOTE if driver_state.listed(machine) else None
