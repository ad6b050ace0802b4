"""NVIDIA's device files are not accessible to this user.

## What it sees

/dev/nvidiactl, /dev/nvidia-uvm or a /dev/nvidiaN is there, and this process may not both read and
write it. Files that belong to administrators anyway (/dev/nvidia-caps) are not looked at.

If a file's mode is open to everyone but the file is closed, a device cgroup withholds it, as batch
systems do with the GPUs of other jobs. That is reported only if the job was given no GPU at all.

## Why it matters

CUDA opens these files for reading and writing. Where it may not, nvidia-smi says "Insufficient
Permissions" and torch sees no GPU, while both work for root.

## Cure

Join the files' group, and log in again; where they belong to root alone, tell the driver to create
them for everyone, or for a group. In a container, give the process that group. A
job without a GPU must ask its batch system for one.

## References

- https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/faq.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import shell, system_packages, target
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import DeviceFile, Machine

CHECK = Check(
    code="ENV006",
    severity=Severity.ERROR,
    since="0.2.0",
    hides=("ENV017", "ENV019", "ENV025"),
)
NEEDED = re.compile(r"/dev/nvidia(\d+|ctl|-uvm)")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all the files together."""
    withheld = driver_state.withheld(machine)
    files = [
        file
        for file in machine.kernel.device_files or ()
        if file.exists and NEEDED.fullmatch(file.path) and False in (file.readable, file.writable)
    ]
    if withheld and len(withheld) == len(files):
        yield from _not_given(machine, files)
        return
    if not files:
        return
    groups = machine.kernel.user_groups
    mine = f"this user is in: {', '.join(groups)}" if groups else "this user's groups: not known"
    text, commands = _cure(target.of(machine), files, groups or ())
    yield Diagnosis(
        title=f"no permission on {files[0].path}"
        + (f" and {len(files) - 1} more of NVIDIA's device files" if files[1:] else ""),
        evidence=f"{'; '.join(map(_facts, files[:4]))}; {mine}",
        cure=Cure(text, commands),
    )


def _not_given(machine: Machine, files: list[DeviceFile]) -> Iterator[Diagnosis]:
    """One finding for files that everyone may open by their mode, but not this process.

    None if it has other GPUs, or in Docker, where NVML's error shows that devices were lost.
    """
    lost = machine.container.kind not in (None, "singularity")
    if lost or driver_state.listed(machine) or driver_state.cuda_works(machine):
        return
    yield Diagnosis(
        title=f"this job was given none of the {len(files)} NVIDIA GPUs here",
        evidence=f"{'; '.join(map(_facts, files[:4]))}: open to everyone, and closed to this "
        "process by a device cgroup",
        cure=Cure(
            "Ask the batch system, or who started this container or service, for a GPU; changing "
            "the files does not help.",
            (
                "# Slurm: srun --gres=gpu:1 ..., or in the script: #SBATCH --gres=gpu:1",
                "# PBS: -l select=1:ngpus=1; LSF: -gpu num=1",
            ),
        ),
    )


def _facts(file: DeviceFile) -> str:
    may = {True: "yes", False: "no", None: "not known"}
    facts = [f"mode {file.mode}" if file.mode else "", f"group {file.group}" if file.group else ""]
    return ", ".join(filter(None, (file.path, *facts))) + (
        f", readable: {may[file.readable]}, writable: {may[file.writable]}"
    )


def _cure(
    place: Target, files: list[DeviceFile], mine: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    group = next((file.group for file in files if file.group), None)
    if place.container:
        return (
            "Start the container with the group of these files, or as a user who is in it.",
            (
                'stat -c "%n %a %u:%g" /dev/nvidia*',
                "# On the host: docker run --gpus all --group-add GID ..., GID as printed here",
            ),
        )
    if group and group != "root" and group not in mine:
        return (
            f"Join the group {group}, then log out and in again: groups count from the next login.",
            (
                system_packages.sudo(place, f'usermod -aG {group} "$(id -un)"'),
                shell.sentence(
                    f"After the new login: id -nG must name {group}, and nvidia-smi must work."
                ),
            ),
        )
    file = "/etc/modprobe.d/nvidia-device-files.conf"
    return (
        "Let the driver create its files for everyone (mode 0666, its default), from the next boot "
        "on; the last line opens the present ones. Remove a lower NVreg_DeviceFileMode if one is "
        "set.",
        (
            "grep -rn NVreg_DeviceFile /etc/modprobe.d /lib/modprobe.d",
            "echo 'options nvidia NVreg_DeviceFileMode=0666' | "
            + system_packages.sudo(place, f"tee {file}"),
            system_packages.sudo(
                place, "chmod 0666 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia[0-9]*"
            ),
        ),
    )
