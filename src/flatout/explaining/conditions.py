"""Conditions by name, on what a signature captured (`needs`) or on this machine (`when`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.nouns import units
from flatout.nouns.machine import Machine

Captured = Mapping[str, str]
GIB = 1 << 30
SMALL_SHM = 1 * GIB
FEW_FILES = 4096
LITTLE_DISK = 2 * GIB


def _fragmented(captured: Captured) -> bool:
    """Groups wanted, allocated, and reserved (all) or unallocated (reserved and not allocated).

    The memory that the allocator holds unused would have sufficed. It is also more than any full
    device has left over: at least a tenth of what is reserved.
    """
    requested = units.size_bytes(captured.get("wanted"))
    allocated, reserved = (
        units.size_bytes(captured.get("allocated")),
        units.size_bytes(captured.get("reserved")),
    )
    unused = units.size_bytes(captured.get("unallocated"))
    if unused is None and allocated is not None and reserved is not None:
        unused = reserved - allocated
    if requested is None or unused is None or allocated is None:
        return False
    return unused >= requested and unused >= GIB / 4 and unused >= (allocated + unused) / 10


def _mostly_other_programs(captured: Captured) -> bool:
    """Groups total, free, and own or reserved: others hold more than a quarter of the device.

    The reserved memory excludes the CUDA context and the libraries of this process itself.
    """
    total, free = units.size_bytes(captured.get("total")), units.size_bytes(captured.get("free"))
    own = units.size_bytes(
        captured.get("own") or captured.get("reserved") or captured.get("allocated")
    )
    if total is None or free is None or own is None or total <= 0:
        return False
    if captured.get("own") is None:
        own += GIB
    return (total - free - own) / total > 0.25


def _larger_than_device(captured: Captured) -> bool:
    """Groups wanted and total: one tensor alone does not fit."""
    requested, total = (
        units.size_bytes(captured.get("wanted")),
        units.size_bytes(captured.get("total")),
    )
    return requested is not None and total is not None and requested > total


def _other_environment(captured: Captured) -> bool:
    """Groups installed and running: folders with site-packages, of different environments.

    Group package is what pip found installed; module is what the program did not find.
    """
    installed, running = captured.get("installed"), captured.get("running")
    if not installed or not running:
        return False
    package, module = captured.get("package"), captured.get("module")
    if package and module and _plain_name(package) != _plain_name(module):
        return False
    return _plain_path(installed) != _plain_path(running)


def _plain_name(package: str) -> str:
    return package.lower().replace("-", "_").split(".")[0]


def _plain_path(folder: str) -> str:
    return folder.replace("\\", "/").rstrip("/").lower()


CAPTURED: dict[str, Callable[[Captured], bool]] = {
    "fragmented": _fragmented,
    "held-by-others": _mostly_other_programs,
    "larger-than-device": _larger_than_device,
    "other-environment": _other_environment,
}


def _system(name: str) -> Callable[[Machine], bool | None]:
    return lambda machine: None if machine.system.name is None else machine.system.name == name


def _below(limit: int, fact: Callable[[Machine], int | None]) -> Callable[[Machine], bool | None]:
    def ask(machine: Machine) -> bool | None:
        value = fact(machine)
        return None if value is None else 0 <= value < limit

    return ask


def _container(machine: Machine) -> bool | None:
    return machine.container.kind is not None


def _vendor(name: str) -> Callable[[Machine], bool | None]:
    return lambda machine: None if machine.gpus is None else bool(machine.gpus_of(name))


def _torch_cpu_only(machine: Machine) -> bool | None:
    torch = machine.torch
    if torch is None or (torch.build is None and torch.cuda is None and torch.hip is None):
        return None
    return torch.cuda is None and torch.hip is None and torch.build in (None, "cpu")


MACHINE: dict[str, Callable[[Machine], bool | None]] = {
    "linux": _system("Linux"),
    "windows": _system("Windows"),
    "macos": _system("Darwin"),
    "wsl": lambda machine: machine.container.wsl is not None,
    "container": _container,
    "no-container": lambda machine: not _container(machine),
    "slurm": lambda machine: (
        None
        if machine.environment is None
        else any(name.startswith("SLURM_") for name in machine.environment)
    ),
    "nvidia-gpu": _vendor("nvidia"),
    "amd-gpu": _vendor("amd"),
    "no-gpu": lambda machine: None if machine.gpus is None else not machine.gpus,
    "several-gpus": lambda machine: None if machine.gpus is None else len(machine.gpus) > 1,
    "gpu-in-use": lambda machine: (
        None if machine.gpus is None else any(gpu.processes for gpu in machine.gpus)
    ),
    "nvidia-driver-missing": lambda machine: (
        all(gpu.driver_sees is False for gpu in machine.gpus_of("nvidia"))
        if machine.gpus_of("nvidia")
        else None
    ),
    "torch-cpu-only": _torch_cpu_only,
    "torch-missing": lambda machine: machine.torch_missing if machine.interpreter else None,
    "shm-small": _below(SMALL_SHM, lambda machine: machine.memory.shm_bytes),
    "few-open-files": _below(FEW_FILES, lambda machine: machine.limits.open_files),
    "disk-nearly-full": _below(
        LITTLE_DISK,
        lambda machine: min(
            (disk.free_bytes for disk in machine.disks or () if disk.free_bytes is not None),
            default=None,
        ),
    ),
    "memory-limited": lambda machine: machine.memory.limit_bytes is not None,
    "library-path-set": lambda machine: (
        None if machine.environment is None else "LD_LIBRARY_PATH" in machine.environment
    ),
}
COMMON = {"linux", "windows", "macos", "nvidia-gpu", "amd-gpu", "several-gpus", "no-container"}
"""Conditions that make a step possible, but not likelier."""
