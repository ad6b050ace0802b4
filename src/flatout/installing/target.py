"""Target: what of a machine decides what is installed on it; read here, or as described."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from flatout.knowledge import gpus
from flatout.nouns.errors import UserError
from flatout.nouns.gpu import Gpu
from flatout.nouns.interpreter import Torch
from flatout.nouns.machine import Machine

MANAGERS = ("pip", "uv", "conda")
SHELLS = ("bash", "powershell")
VENDORS = ("nvidia", "amd", "intel", "apple")
"""Which GPUs decide where a machine has those of several vendors, first to last."""

VIRTUAL_GPU = re.compile(r".*[A-Z0-9]-\d+(-\d+)?([QCAB]|CME)")
"""Names of vGPUs: GRID T4-16Q, NVIDIA A40-24Q, A100-4-20C."""


@dataclass(frozen=True)
class Target:
    """The machine to install for; None where it is not known."""

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
    """Of the GPU: nvidia, amd, intel, apple; None: no GPU."""
    gpu: str | None = None
    """Its name."""
    gpus: int = 0
    compute_capability: tuple[int, int] | None = None
    gfx: str | None = None
    driver: str | None = None
    """Version of the vendor's driver; None: none installed, or not known."""
    rocm: str | None = None
    wsl: bool = False
    container: bool = False
    secure_boot: bool | None = None
    root: bool | None = None
    """Commands run as administrator already: no sudo."""
    user_has_torch: str | None = None
    """torch that is installed now, with its build: 2.7.1+cpu."""
    release: str | None = None
    """PyTorch release to stay with where one of its builds fits: 2.9.1; None: the newest."""
    free_threaded: bool = False
    """A Python without the global interpreter lock: wheels of its own (3.13t)."""
    shell: str | None = None
    """bash or powershell; None: the system's own."""

    @property
    def python_minor(self) -> str | None:
        """3.11 of 3.11.7; 3.13t where it is free-threaded."""
        if self.python is None:
            return None
        minor = ".".join(self.python.split(".")[:2])
        return f"{minor}t" if self.free_threaded and not minor.endswith("t") else minor

    @property
    def platform(self) -> str:
        """As the tables of wheels name it: linux-x86_64, linux-aarch64, macos-arm64, ..."""
        names = {"Linux": "linux", "Windows": "windows", "Darwin": "macos"}
        arm = "aarch64" if self.system == "Linux" else "arm64"
        processor = {"x86_64": "x86_64", "arm64": arm}.get(self.architecture, self.architecture)
        return f"{names.get(self.system, self.system.lower())}-{processor}"

    @property
    def jetson(self) -> bool:
        """An NVIDIA Jetson: Linux on ARM with the GPU in the same chip."""
        arm = self.system == "Linux" and self.architecture == "arm64"
        return arm and self.vendor == "nvidia" and gpus.kind(self.gpu) == "jetson"

    @property
    def virtual_gpu(self) -> bool:
        """An NVIDIA vGPU: its driver must fit the host's."""
        return self.vendor == "nvidia" and VIRTUAL_GPU.fullmatch(self.gpu or "") is not None


def of(machine: Machine, manager: str | None = None) -> Target:
    """The Target that this Machine is (the oldest NVIDIA GPU decides, then AMD, Intel, Apple)."""
    system, python, torch = machine.system, machine.interpreter, machine.torch
    chosen, count = _deciding(machine)
    vendor = chosen.vendor if chosen else None
    driver = machine.driver(vendor) if vendor else None
    return Target(
        system=system.name or "Linux",
        architecture=architecture(system.architecture or machine.cpu.architecture),
        distribution=system.distribution,
        distribution_like=system.distribution_like,
        distribution_version=system.distribution_version,
        libc=system.libc,
        python=python.version if python else None,
        executable=python.executable if python else None,
        manager=manager or _manager(machine),
        virtual_environment=python.virtual_environment if python else None,
        vendor=vendor,
        gpu=chosen.name if chosen else None,
        gpus=count,
        compute_capability=_capability(chosen) if chosen else None,
        gfx=chosen.gfx or _model_gfx(chosen.name) if chosen else None,
        driver=(driver.version or driver.kernel_version) if driver else None,
        rocm=driver.rocm if driver else None,
        wsl=machine.container.wsl is not None,
        container=machine.container.kind is not None,
        secure_boot=system.secure_boot,
        root=system.root,
        user_has_torch=_installed(torch) if torch else None,
        free_threaded=bool(python and python.free_threaded),
    )


def architecture(name: str | None) -> str:
    """x86_64 or arm64 by any of their names; another one as it is."""
    lower = (name or "x86_64").lower()
    if lower in ("x86_64", "amd64", "x64", "x86-64"):
        return "x86_64"
    return "arm64" if lower in ("arm64", "aarch64") else lower


def asked(machine: Machine) -> Target:
    """`of`, where lines are to be run in the interpreter. Raises UserError where it is no Python
    that answers: what to install into it would be a guess.
    """
    python = machine.interpreter
    if python is not None and python.error is not None and python.version is None:
        message = f"{python.executable or 'the interpreter'} cannot be asked: {python.error}"
        raise UserError(message, "name another one: flatout env install --python PATH", 1)
    return of(machine)


def adjusted(target: Target, manager: str | None = None, shell: str | None = None) -> Target:
    """The Target with another manager or shell. Raises UserError where there is none such."""
    for name, value, known in (("manager", manager, MANAGERS), ("shell", shell, SHELLS)):
        if value is not None and value.lower() not in known:
            raise UserError(f"--{name} {value} is not known", f"one of {', '.join(known)}")
    return replace(
        target,
        manager=manager.lower() if manager else target.manager,
        shell=shell.lower() if shell else target.shell,
    )


def _deciding(machine: Machine) -> tuple[Gpu | None, int]:
    """The GPU that decides, and how many there are of its vendor."""
    for vendor in VENDORS:
        found = machine.gpus_of(vendor)
        if vendor == "nvidia":
            known = [gpu for gpu in found if _capability(gpu) is not None]
            oldest = min(known, key=lambda gpu: _capability(gpu) or (0, 0), default=None)
        else:
            oldest = next((gpu for gpu in found if not gpu.shared_memory), None)
        if found:
            return oldest or found[0], len(found)
    return None, 0


def _capability(gpu: Gpu) -> tuple[int, int] | None:
    if gpu.compute_capability is not None:
        return gpu.compute_capability
    model = gpus.find(gpu.name) if gpu.name and gpu.vendor == "nvidia" else None
    return model.compute_capability if model else None


def _model_gfx(name: str | None) -> str | None:
    model = gpus.find(name) if name else None
    return model.gfx if model else None


def _manager(machine: Machine) -> str:
    python = machine.interpreter
    if python is None:
        return "pip"
    if python.conda or python.managed_by == "conda":
        return "conda"
    return "uv" if python.managed_by == "uv" else "pip"


def _installed(torch: Torch) -> str | None:
    """With the build, also where only its CUDA tells it: the default index leaves it out."""
    build = torch.build or (f"cu{torch.cuda.replace('.', '')}" if torch.cuda else None)
    return f"{torch.version}+{build}" if torch.version and build else torch.version
