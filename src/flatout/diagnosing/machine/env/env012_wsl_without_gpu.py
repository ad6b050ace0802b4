"""The GPU of Windows cannot be reached from this WSL, or a Linux driver inside it is in the way.

## What it sees

- The process runs in WSL 1; or in WSL 2, outside of a container, and the device file /dev/dxg does
  not exist. For a torch that is not built for CUDA it is a warning.
- The process runs in WSL 2, and libcuda.so (or libnvidia-ml.so) is found outside of
  /usr/lib/wsl/lib, or a Linux driver's library version is known. Stub libraries of a CUDA toolkit
  and its forward-compatibility folder do not count.

## Why it matters

WSL 1 translates Linux system calls and has no Linux kernel; a GPU cannot be reached from it. From
WSL 2 the only way to the GPU is /dev/dxg. It is missing if the WSL kernel is older than 4.19.121 or
self-built without it, if Windows is older than Windows 10 21H2, if the Windows driver does not
support WSL, or if /etc/wsl.conf switches the GPU off.

In WSL the driver is Windows' own: it appears as /usr/lib/wsl/lib/libcuda.so.1 and speaks to
/dev/dxg. A Linux driver package brings another libcuda.so.1, for a kernel module that WSL does not
have. If the loader takes that one, CUDA finds no device. Packages such as `cuda` and `cuda-drivers`
pull it in; `cuda-toolkit` does not.

## Cure

Convert a distribution of WSL 1 to WSL 2, from PowerShell on Windows. In WSL 2 update WSL and the
Windows driver, check /etc/wsl.conf, and restart WSL. Remove a Linux driver's packages inside WSL,
and keep the driver up to date on Windows.

## References

- https://docs.nvidia.com/cuda/wsl-user-guide/
- https://learn.microsoft.com/windows/wsl/basic-commands
- https://learn.microsoft.com/windows/wsl/wsl-config
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver, shell, system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(
    code="ENV012",
    severity=Severity.ERROR,
    since="0.2.0",
    hides=("ENV004", "ENV019", "ENV025"),
)
OLDEST_KERNEL = (4, 19, 121)
RIGHT_FOLDER = "/usr/lib/wsl/"
NO_DRIVER = ("/stubs/", "/compat/")
LIBRARIES = ("cuda", "nvidia-ml")
REMOVE = {
    "apt": "apt-get purge",
    "dnf": "dnf remove",
    "zypper": "zypper remove",
    "pacman": "pacman -R",
}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the way to the GPU, by the version of WSL, and one for all libraries."""
    files, place = machine.kernel.device_files, machine.container
    if place.wsl == 1:
        yield _first_version(machine)
    there = any(file.path == "/dev/dxg" and file.exists for file in files or ())
    if place.wsl == 2 and place.kind is None and files is not None and not there:
        yield _no_device(machine)
    yield from _driver(machine)


def _driver(machine: Machine) -> Iterator[Diagnosis]:
    if machine.container.wsl != 2 or machine.container.kind is not None:
        return
    shadows = [
        library.path + (f" (version {library.version})" if library.version else "")
        for library in machine.libraries or ()
        if library.name in LIBRARIES
        and not library.path.startswith(RIGHT_FOLDER)
        and not any(folder in library.path for folder in NO_DRIVER)
    ]
    installed = machine.driver("nvidia")
    if not shadows and installed and installed.library_version:
        shadows = [f"libcuda.so.{installed.library_version} of a Linux driver"]
    if not shadows:
        return
    place = target.of(machine)
    listed = driver_state.installed_packages(place)
    remove = REMOVE.get(system_packages.package_manager(place) or "")
    lines: tuple[str, ...] = (
        shell.sentence("Remove the packages of the Linux driver with your package manager."),
    )
    if listed and remove:
        lines = (listed, system_packages.sudo(place, f"{remove} $({listed})"))
    yield Diagnosis(
        title="a Linux NVIDIA driver inside WSL shadows the one of Windows",
        evidence=f"in WSL2, where {RIGHT_FOLDER}lib/libcuda.so.1 is the driver: "
        + "; ".join(shadows[:4]),
        cure=Cure(
            "Remove the Linux driver's packages from this WSL distribution. The driver belongs on "
            "Windows alone; a CUDA toolkit may stay (package cuda-toolkit, never cuda).",
            (
                *lines,
                "# Nothing listed? The driver came as a .run file: sudo nvidia-uninstall",
                system_packages.sudo(place, "ldconfig"),
                "/usr/lib/wsl/lib/nvidia-smi",
            ),
        ),
        severity=Severity.WARNING if driver_state.cuda_works(machine) else None,
    )


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
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", release or "")
    older = numbers is not None and tuple(map(int, numbers.groups())) < OLDEST_KERNEL
    old = f", older than {'.'.join(map(str, OLDEST_KERNEL))}" if older else ""
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
