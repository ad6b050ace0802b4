"""Target: the facts of a machine that decide what to install; read from it, or described."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from flatout.knowledge import gpus
from flatout.nouns.errors import UserError
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

MANAGERS = ("pip", "uv", "conda")
VENDORS = ("nvidia", "amd", "intel", "apple")
"""The vendor that decides in a machine with several vendors' GPUs, first to last."""

VIRTUAL_GPU = re.compile(r".*[A-Z0-9]-\d+(-\d+)?([QCAB]|CME)")
"""Names of vGPUs: GRID T4-16Q, NVIDIA A40-24Q, A100-4-20C."""


@dataclass(frozen=True)
class Target:
    """The machine to install for; unknown facts are None."""

    system: str = "Linux"
    """Linux, Windows or Darwin."""
    architecture: str = "x86_64"
    """x86_64 or arm64 (also for aarch64; AMD64 is x86_64)."""
    distribution: str | None = None
    """ubuntu, debian, fedora, rhel, rocky, almalinux, amzn, sles, opensuse-leap, arch, ..."""
    distribution_like: tuple[str, ...] = ()
    distribution_version: str | None = None
    libc: str | None = None
    python: str | None = None
    """3.11.7 or 3.11."""
    executable: str | None = None
    """The interpreter's path."""
    manager: str = "pip"
    """pip, uv or conda."""
    virtual_environment: bool | None = None
    vendor: str | None = None
    """The GPU's vendor: nvidia, amd, intel, apple, or None without a GPU."""
    gpu: str | None = None
    """The GPU's name."""
    gpus: int = 0
    compute_capability: tuple[int, int] | None = None
    gfx: str | None = None
    driver: str | None = None
    """Version of the vendor's driver, or None if not installed or not known."""
    rocm: str | None = None
    wsl: bool = False
    container: bool = False
    secure_boot: bool | None = None
    root: bool | None = None
    """Whether commands already run as administrator, without sudo."""
    user_has_torch: str | None = None
    """The installed torch, with its build: 2.7.1+cpu."""
    release: str | None = None
    """PyTorch release to keep if one of its builds fits: 2.9.1, or None for the newest."""
    free_threaded: bool = False
    """A Python without the global interpreter lock, which has separate wheels (3.13t)."""

    @property
    def python_minor(self) -> str | None:
        """3.11 for 3.11.7; 3.13t if it is free-threaded."""
        if self.python is None:
            return None
        minor = ".".join(self.python.split(".")[:2])
        return f"{minor}t" if self.free_threaded and not minor.endswith("t") else minor

    @property
    def platform(self) -> str:
        """The name in the wheel tables: linux-x86_64, linux-aarch64, macos-arm64, ..."""
        names = {"Linux": "linux", "Windows": "windows", "Darwin": "macos"}
        arm = "aarch64" if self.system == "Linux" else "arm64"
        processor = {"x86_64": "x86_64", "arm64": arm}.get(self.architecture, self.architecture)
        return f"{names.get(self.system, self.system.lower())}-{processor}"

    @property
    def jetson(self) -> bool:
        """Whether it is an NVIDIA Jetson: Linux on ARM with the GPU in the same chip."""
        arm = self.system == "Linux" and self.architecture == "arm64"
        return arm and self.vendor == "nvidia" and gpus.kind(self.gpu) == "jetson"

    @property
    def virtual_gpu(self) -> bool:
        """Whether it is an NVIDIA vGPU: its driver must fit the host's."""
        return self.vendor == "nvidia" and VIRTUAL_GPU.fullmatch(self.gpu or "") is not None


def of(machine: Machine, manager: str | None = None) -> Target:
    """The Target for this Machine (the oldest NVIDIA GPU decides, then AMD, Intel, Apple)."""
    system, python, torch = machine.system, machine.interpreter, machine.torch
    gpu, count = _deciding_gpu(machine)
    vendor = gpu.vendor if gpu else None
    driver = machine.driver(vendor) if vendor else None
    model = gpus.find(gpu.name) if gpu and gpu.name else None
    managed_by = python.managed_by if python else None
    if python and python.conda:
        managed_by = "conda"
    installed = torch.version if torch else None
    if torch and installed:
        # The default index omits the build; only its CUDA shows it.
        build = torch.build or (f"cu{torch.cuda.replace('.', '')}" if torch.cuda else None)
        installed = f"{installed}+{build}" if build else installed
    return Target(
        system=system.name or "Linux",
        architecture=architecture(system.architecture or machine.cpu.architecture),
        distribution=system.distribution,
        distribution_like=system.distribution_like,
        distribution_version=system.distribution_version,
        libc=system.libc,
        python=python.version if python else None,
        executable=python.executable if python else None,
        manager=manager or (managed_by if managed_by in ("conda", "uv") else "pip"),
        virtual_environment=python.virtual_environment if python else None,
        vendor=vendor,
        gpu=gpu.name if gpu else None,
        gpus=count,
        compute_capability=_capability(gpu) if gpu else None,
        gfx=gpu.gfx or (model.gfx if model else None) if gpu else None,
        driver=(driver.version or driver.kernel_version) if driver else None,
        rocm=driver.rocm if driver else None,
        wsl=machine.container.wsl is not None,
        container=machine.container.kind is not None,
        secure_boot=system.secure_boot,
        root=system.root,
        user_has_torch=installed,
        free_threaded=bool(python and python.free_threaded),
    )


def architecture(name: str | None) -> str:
    """x86_64 or arm64 for any of their names; others unchanged."""
    lower = (name or "x86_64").lower()
    if lower in ("x86_64", "amd64", "x64", "x86-64"):
        return "x86_64"
    return "arm64" if lower in ("arm64", "aarch64") else lower


def of_interpreter(machine: Machine) -> Target:
    """`of`, for lines that will run in the interpreter. Raises UserError if it does not answer
    as a Python: then it is not known what to install into it.
    """
    python = machine.interpreter
    if python is not None and python.error is not None and python.version is None:
        message = (
            f"{python.executable or 'the interpreter'} did not report its facts: {python.error}"
        )
        raise UserError(message, "name another interpreter: --python", 1)
    return of(machine)


def adjusted(target: Target, manager: str | None) -> Target:
    """The Target with another manager. Raises UserError for an unknown one."""
    if manager is None:
        return target
    if manager.lower() not in MANAGERS:
        raise UserError(f"--manager {manager} is not known", f"one of {', '.join(MANAGERS)}")
    return replace(target, manager=manager.lower())


def _deciding_gpu(machine: Machine) -> tuple[Gpu | None, int]:
    """The GPU that decides, and the number of its vendor's GPUs."""
    for vendor in VENDORS:
        devices = machine.gpus_of(vendor)
        if vendor == "nvidia":
            with_capability = [gpu for gpu in devices if _capability(gpu) is not None]
            oldest = min(with_capability, key=lambda gpu: _capability(gpu) or (0, 0), default=None)
        else:
            oldest = next((gpu for gpu in devices if not gpu.shared_memory), None)
        if devices:
            return oldest or devices[0], len(devices)
    return None, 0


def _capability(gpu: Gpu) -> tuple[int, int] | None:
    if gpu.compute_capability is not None:
        return gpu.compute_capability
    model = gpus.find(gpu.name) if gpu.name and gpu.vendor == "nvidia" else None
    return model.compute_capability if model else None
