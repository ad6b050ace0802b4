"""What the checks of torch and Python ask of a Machine: build, GPUs and variables."""

from __future__ import annotations

import re
from dataclasses import replace

from packaging.version import InvalidVersion, Version

from flatout.diagnosing.machine.env import visible_devices
from flatout.installing import python_packages, system_packages, target
from flatout.installing import pytorch as wheels
from flatout.installing.choice import Choice
from flatout.installing.target import Target
from flatout.knowledge import gpus as data_sheets
from flatout.knowledge.compat import pytorch
from flatout.nouns.errors import UserError
from flatout.nouns.gpu import Gpu
from flatout.nouns.interpreter import Package, Torch
from flatout.nouns.machine import Library, Machine

INTEGRATED_BYTES = 4 * 2**30
"""A GPU that reports less memory of its own counts as integrated."""


def version(text: str | None) -> Version | None:
    """The version in the text, or None if there is none that can be compared."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def numbers(text: str | None, count: int = 2) -> tuple[int, ...] | None:
    """The first `count` numbers of a version: (12, 8) for "12.8.1"."""
    parsed = version(text)
    return parsed.release[:count] if parsed else None


def variable(machine: Machine, name: str) -> str | None:
    """An environment variable's value, or None if unset or unknown."""
    return (machine.environment or {}).get(name)


def package(machine: Machine, *names: str) -> Package | None:
    """The first installed package with one of these names, or None if none is known."""
    python = machine.interpreter
    packages = (python.packages or ()) if python else ()
    return next((package_facts for package_facts in packages if package_facts.name in names), None)


def on(machine: Machine, *systems: str) -> bool:
    """Whether the machine runs one of these systems: Linux, Windows, Darwin."""
    return machine.system.name in systems


def label(torch: Torch) -> str:
    """What to call this torch: torch 2.9.1+cu128."""
    build = f"+{torch.build}" if torch.build else ""
    return f"torch {torch.version}{build}" if torch.version else "torch"


def gpu_name(gpu: Gpu) -> str:
    """What to call a GPU in a sentence."""
    return gpu.name or {"nvidia": "NVIDIA GPU", "amd": "AMD GPU"}.get(gpu.vendor, "Intel GPU")


def capable(machine: Machine, vendor: str) -> tuple[Gpu, ...]:
    """The vendor's GPUs worth training on, without the small integrated ones."""
    gpus = machine.gpus_of(vendor)
    if vendor in ("nvidia", "apple"):
        return gpus
    if vendor == "intel":
        # The GPUs that torch supports have their own data sheets: Arc, also integrated ones.
        return tuple(
            gpu for gpu in gpus if gpu.shared_memory is False or data_sheets.kind(gpu.name)
        )
    return tuple(
        gpu
        for gpu in gpus
        if not gpu.shared_memory and not 0 < (gpu.memory_bytes or 0) < INTEGRATED_BYTES
    )


def visible_gpus(machine: Machine) -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that CUDA_VISIBLE_DEVICES shows; all of them if it is not set."""
    gpus = machine.gpus_of("nvidia")
    value = variable(machine, visible_devices.NAME)
    if value is None:
        return gpus
    entries = visible_devices.read(value, gpus).visible
    return tuple(gpu for gpu in gpus if any(_names(entry, gpu) for entry in entries))


def _names(entry: str, gpu: Gpu) -> bool:
    if entry.isdecimal():
        return gpu.index is None or int(entry) == gpu.index
    return gpu.uuid is None or gpu.uuid.lower().startswith(entry.lower())


def cuda_of(torch: Torch | None) -> str | None:
    """The CUDA that torch was built with, or None if not a CUDA build or unknown."""
    if torch is None or torch.hip:
        return None
    build = torch.build or ""
    if torch.cuda is None and build.startswith("cu") and build[2:].isdecimal():
        return f"{build[2:-1]}.{build[-1]}"
    return torch.cuda


def rocm_of(torch: Torch | None) -> str | None:
    """The ROCm that torch was built with, or None if not a ROCm build or unknown."""
    if torch is None:
        return None
    build = torch.build or ""
    return build.removeprefix("rocm") if build.startswith("rocm") else torch.hip


def cpu_build(torch: Torch) -> bool:
    """Whether this torch certainly holds no GPU code."""
    gpu = torch.cuda or torch.hip or torch.xpu or torch.mps_built
    no_architectures = torch.build is None and torch.imported is True and torch.arch_list == ()
    return torch.build == "cpu" or bool(no_architectures and not gpu)


def arch_list(machine: Machine) -> tuple[str, ...]:
    """GPU architectures in torch, as it reports or by its build's entry; empty if unknown."""
    torch = machine.torch
    if torch is None or torch.arch_list or not torch.version or not torch.build:
        return (torch and torch.arch_list) or ()
    build = pytorch.build(torch.version, torch.build)
    return build.arch_list_on(target.of(machine).platform) if build else ()


def new_environment(place: Target) -> tuple[str, ...]:
    """Lines that make an environment with the second newest Python for which torch is built.

    Other packages are already built for that one.
    """
    plain = [minor for minor in pytorch.newest().pythons if not minor.endswith("t")]
    chosen = plain[-2] if len(plain) > 1 else plain[-1]
    if place.manager == "conda":
        return (f"conda create --name torch python={chosen}", "conda activate torch")
    if place.system == "Windows":
        return (f"winget install Python.Python.{chosen}", f"py -{chosen} -m venv .venv")
    if place.manager == "uv":
        return (f"uv venv --python {chosen} .venv",)
    return (
        f"python{chosen} -m venv .venv",
        f"# where there is no python{chosen}: uv venv --python {chosen} .venv",
    )


def choice(machine: Machine) -> Choice | None:
    """The build to install, or None if none fits this machine."""
    try:
        return wheels.choose(_to_install(machine))
    except UserError:
        return None


def install_torch(machine: Machine) -> tuple[str, ...]:
    """Lines that install the right torch, or a comment with the reason if none fits."""
    try:
        return wheels.commands(_to_install(machine))
    except UserError as error:
        return tuple(f"# {line}" for line in (error.message, error.next_step) if line)


def _to_install(machine: Machine) -> Target:
    """The Target that keeps the installed release if a build of it fits: programs rely on it."""
    release = machine.torch.version if machine.torch else None
    return replace(target.of(machine), release=release)


def same_torch_again(machine: Machine) -> tuple[str, ...]:
    """Lines that reinstall this torch, or the right one if it is not from pip."""
    torch, place = machine.torch, torch_target(machine)
    if torch is None or not torch.version or not torch.build or place.manager == "conda":
        return install_torch(machine)
    build = pytorch.build(torch.version, torch.build)
    if build is None or place.platform not in build.systems:
        return install_torch(machine)
    options = ("--force-reinstall", "--index-url", pytorch.index_url(build.name))
    return python_packages.lines(place, (f"torch=={torch.version}",), options=options)


def torch_target(machine: Machine) -> Target:
    """The Target for torch's companion packages: with the manager that installed torch.

    That may be pip in a conda environment.
    """
    place = target.of(machine)
    by_conda = machine.torch is not None and machine.torch.installer == "conda"
    return replace(place, manager="pip") if place.manager == "conda" and not by_conda else place


def shortened(text: str, length: int = 100) -> str:
    """The text in one line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3].rstrip() + "..."


def brought(machine: Machine, library: str) -> str | None:
    """The version of the cudnn or nccl in torch's wheel, or None if unknown."""
    torch, names = machine.torch, [f"nvidia-{library}-cu{major}" for major in (11, 12, 13)]
    installed = package(machine, *names)
    if torch is None or (installed and installed.version):
        return installed.version if installed else None
    for text in torch.requires:
        match = re.match(rf"nvidia-{library}-cu\d+\s*==\s*([\d.]+)", text)
        if match:
            return match.group(1)
    build = pytorch.build(torch.version, torch.build) if torch.version and torch.build else None
    return build.cudnn if build and library == "cudnn" else None


def differ(first: str | None, second: str | None) -> bool:
    """Whether two versions differ in the first three numbers, as far as both give them."""
    first_numbers, second_numbers = numbers(first, 3), numbers(second, 3)
    if not first_numbers or not second_numbers or min(len(first_numbers), len(second_numbers)) < 2:
        return False
    shared = min(len(first_numbers), len(second_numbers))
    return first_numbers[:shared] != second_numbers[:shared]


def foreign_libraries(machine: Machine, name: str) -> tuple[tuple[Library, str], ...]:
    """Libraries that the loader finds before its own folders, each with the variable behind it."""
    preloaded = re.split(r"[:\s]+", variable(machine, "LD_PRELOAD") or "")
    return tuple(
        (library, "LD_PRELOAD" if library.path in preloaded else "LD_LIBRARY_PATH")
        for library in machine.libraries or ()
        if library.name == name and (library.path in preloaded or library.source == "library_path")
    )


def without_folder(machine: Machine, name: str, library: Library) -> tuple[str, ...]:
    """Lines that take the library's folder (or the library) out of the variable."""
    place = target.of(machine)
    unwanted = {library.path, library.path.rpartition("/")[0]}
    parts = (variable(machine, name) or "").split(":")
    folders = [part for part in parts if part and part.rstrip("/") not in unwanted]
    return system_packages.variable(place, name, ":".join(folders) or None)
