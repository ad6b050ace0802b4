"""Shared by the checks of GPUs: a GPU's name, kind and settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from flatout.diagnosing.driver_state import on_host
from flatout.installing import shell, system_packages, target
from flatout.knowledge import gpus as data_sheets
from flatout.knowledge.gpus import GpuModel
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

WITH_PROCESSOR = ("integrated", "jetson")
"""Kinds of GPUs that share the memory of their processor."""
TITLE = 44
"""Characters of a GPU's name that fit into a title."""


def label(gpu: Gpu) -> str:
    """RTX 4090 (GPU 0): short enough for a title."""
    makers = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}
    maker = makers.get(gpu.vendor, gpu.vendor)
    name = data_sheets.without_maker(gpu.name) if gpu.name else f"{maker} GPU"
    number = f"at {gpu.pci_address}" if gpu.pci_address else "GPU"
    if gpu.index is not None:
        number = f"GPU {gpu.index}"
    return f"{name[:TITLE].rstrip()} ({number})"


def subject(gpus: Sequence[Gpu]) -> str:
    """One GPU by name, several by number."""
    if len(gpus) == 1:
        return label(gpus[0])
    numbers = [gpu.index for gpu in gpus if gpu.index is not None]
    places = f" ({_ranges(numbers)})" if len(numbers) == len(gpus) else ""
    return f"{len(gpus)} GPUs{places}"


def facts(gpus: Iterable[Gpu], tell: Callable[[Gpu], str]) -> str:
    """The same fact of several GPUs, for the evidence; identical GPUs are grouped."""
    alike: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        alike.setdefault(tell(gpu), []).append(gpu)
    return "; ".join(f"{_together(same)}: {text}" for text, same in alike.items())


def data_center(gpu: Gpu) -> bool:
    """Whether its name is a server GPU's: A100, H100, L4, T4, Tesla, Instinct."""
    return data_sheets.kind(gpu.name) == "server"


def laptop(gpu: Gpu) -> bool:
    """Whether its name is a laptop GPU's."""
    match = re.search(r"Laptop|Mobile|Max-Q(?! Workstation)", gpu.name or "")
    return match is not None


def on_pcie(gpu: Gpu) -> bool:
    """Whether data reaches it over PCIe: it is not in the processor or joined to it directly."""
    entry = data_sheets.product(gpu.name)
    if gpu.shared_memory or entry is None:
        return not gpu.shared_memory
    return entry.kind not in WITH_PROCESSOR and "nvlink_c2c" not in entry.features


def own_memory(machine: Machine) -> tuple[Gpu, ...]:
    """GPUs known to have their own memory, of known size."""
    return tuple(gpu for gpu in machine.gpus or () if gpu.memory_bytes is not None and _own(gpu))


def model(gpu: Gpu) -> GpuModel | None:
    """Its data sheet, or None if unknown or if its name fits several that differ."""
    return data_sheets.find(gpu.name, gpu.memory_bytes) if gpu.name else None


def smi(gpus: Sequence[Gpu], options: str) -> str:
    """An nvidia-smi line for these GPUs."""
    addresses = [gpu.pci_address if gpu.index is None else str(gpu.index) for gpu in gpus]
    numbers = [number for number in addresses if number is not None]
    if len(numbers) < len(gpus):
        return f"nvidia-smi {options}"
    return f"nvidia-smi -i {','.join(numbers)} {options}"


def only(machine: Machine, vendor: str, numbers: Sequence[str]) -> tuple[str, ...]:
    """The lines that let a program see only these GPUs of NVIDIA or AMD."""
    place, chosen = target.of(machine), ",".join(numbers)
    if vendor == "amd":
        return system_packages.variable(place, "HIP_VISIBLE_DEVICES", chosen)[:1]
    return (
        *system_packages.variable(place, "CUDA_DEVICE_ORDER", "PCI_BUS_ID")[:1],
        *system_packages.variable(place, "CUDA_VISIBLE_DEVICES", chosen)[:1],
    )


def settings(machine: Machine, lines: Iterable[str]) -> tuple[str, ...]:
    """Lines that the administrator must run where the driver is: on the host or on Windows."""
    place = target.of(machine)
    lines = tuple(lines)
    if not lines:
        return ()
    if place.wsl:
        remarks = tuple(shell.remark(line) for line in lines)
        return (shell.remark("On Windows, in a terminal of the administrator:"), *remarks)
    return on_host(place, tuple(system_packages.sudo(place, line) for line in lines))


def _together(gpus: Sequence[Gpu]) -> str:
    names = {gpu.name for gpu in gpus}
    if len(gpus) == 1 or len(names) > 1:
        return ", ".join(map(label, gpus))
    return f"{subject(gpus)}, {gpus[0].name or 'not named'}"


def _ranges(numbers: Sequence[int]) -> str:
    """Like "0-3, 6": three or more in a row are written as a range."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def _own(gpu: Gpu) -> bool:
    """Whether it has its own memory; by name NVIDIA's GPUs do, except Jetson and GB10."""
    if gpu.shared_memory is not None:
        return not gpu.shared_memory
    kind = data_sheets.kind(gpu.name)
    if gpu.vendor == "nvidia":
        return bool(gpu.name) and kind not in WITH_PROCESSOR
    return gpu.vendor == "amd" and kind is not None and kind not in WITH_PROCESSOR
