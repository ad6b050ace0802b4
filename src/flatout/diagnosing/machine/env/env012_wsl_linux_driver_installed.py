"""A Linux NVIDIA driver is installed inside WSL and shadows the one that Windows provides.

## What it sees

The process runs in WSL2, and libcuda.so (or libnvidia-ml.so) is found outside of /usr/lib/wsl/lib,
or a Linux driver's library version is known. Stub libraries of a CUDA toolkit and its
forward-compatibility folder do not count.

## Why it matters

In WSL the driver is Windows' own: it appears as /usr/lib/wsl/lib/libcuda.so.1 and speaks to
/dev/dxg. A Linux driver package brings another libcuda.so.1, for a kernel module that WSL does not
have. If the loader takes that one, CUDA finds no device. Packages such as `cuda` and `cuda-drivers`
pull it in; `cuda-toolkit` does not.

## Cure

Remove the driver's packages inside WSL, and keep the driver up to date on Windows.

## References

- https://docs.nvidia.com/cuda/wsl-user-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import shell, system_packages, target
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(
    code="ENV012",
    severity=Severity.ERROR,
    since="0.2.0",
    hides=("ENV004", "ENV019", "ENV025"),
)
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
    """One finding for all the libraries together."""
    if machine.container.wsl != 2 or machine.container.kind is not None:
        return
    shadows = _shadows(machine)
    if not shadows:
        return
    yield Diagnosis(
        title="a Linux NVIDIA driver inside WSL shadows the one of Windows",
        evidence=f"in WSL2, where {RIGHT_FOLDER}lib/libcuda.so.1 is the driver: "
        + "; ".join(shadows[:4]),
        cure=Cure(
            "Remove the Linux driver's packages from this WSL distribution. The driver belongs on "
            "Windows alone; a CUDA toolkit may stay (package cuda-toolkit, never cuda).",
            _commands(target.of(machine)),
        ),
        severity=Severity.WARNING if driver_state.cuda_works(machine) else None,
    )


def _shadows(machine: Machine) -> list[str]:
    paths = [
        library.path + (f" (version {library.version})" if library.version else "")
        for library in machine.libraries or ()
        if library.name in LIBRARIES
        and not library.path.startswith(RIGHT_FOLDER)
        and not any(folder in library.path for folder in NO_DRIVER)
    ]
    driver = machine.driver("nvidia")
    version = driver.library_version if driver else None
    return paths or ([f"libcuda.so.{version} of a Linux driver"] if version else [])


def _commands(place: Target) -> tuple[str, ...]:
    listed = driver_state.installed_packages(place)
    remove = REMOVE.get(system_packages.package_manager(place) or "")
    lines: tuple[str, ...] = (
        shell.sentence("Remove the packages of the Linux driver with your package manager."),
    )
    if listed and remove:
        lines = (listed, system_packages.sudo(place, f"{remove} $({listed})"))
    return (
        *lines,
        "# Nothing listed? The driver came as a .run file: sudo nvidia-uninstall",
        system_packages.sudo(place, "ldconfig"),
        "/usr/lib/wsl/lib/nvidia-smi",
    )
