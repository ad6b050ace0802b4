"""Shared by the checks of ceilings: how much of its data sheet a device reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flatout.diagnosing import devices
from flatout.knowledge import gpus
from flatout.nouns import units
from flatout.nouns.ceiling import Benched, Ceiling
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

LEAST_COMPUTE = 0.55
"""Share of the peak in the best format; healthy GPUs reach 0.7 to 0.95 with random data."""
LEAST_COMPUTE_AMD = 0.4
"""CDNA's data sheets assume clocks that no full load holds; healthy GPUs reach 0.5 to 0.65."""
LEAST_MEMORY = 0.7
"""Share of the bandwidth; healthy GPUs reach 0.8 to 0.95."""
LEAST_PCIE = 0.65
"""Share of the lanes' rate before overhead; healthy GPUs reach 0.8 to 0.9."""
PROGRAM_BYTES = 2**28
"""A program that holds less on the GPU belongs to the display or a monitoring tool."""


@dataclass(frozen=True)
class Shortfall:
    """One device that gives far less than its data sheet says."""

    ceiling: Ceiling
    """The best of the ceilings that show it."""
    share: float
    gpu: Gpu | None
    """The GPU as it was under load, or None if unknown."""
    name: str

    @property
    def label(self) -> str:
        """The GPU's name for a title, or the device's if the GPU is unknown."""
        return devices.label(self.gpu) if self.gpu is not None else self.name[: devices.TITLE]

    @property
    def figures(self) -> str:
        """The figures: matrix product, bf16: 310 of 989.4 TFLOP/s (31%)."""
        ceiling = self.ceiling
        return (
            f"{ceiling.title}: {ceiling.value:,.4g} of {ceiling.datasheet:,.4g} {ceiling.unit} "
            f"({units.share(self.share)})"
        )


def compute(benched: Benched, machine: Machine) -> Iterator[Shortfall]:
    """Devices whose best matrix product is far below its peak."""
    for device in _devices(benched):
        rows = [ceiling for ceiling in _on(benched, device) if ceiling.id.startswith("matmul-")]
        shortfall = _shortfall(benched, machine, rows)
        if shortfall is None:
            continue
        model = gpus.find(shortfall.name)
        least = LEAST_COMPUTE_AMD if model and model.vendor == "amd" else LEAST_COMPUTE
        if shortfall.share < least:
            yield shortfall


def memory(benched: Benched, machine: Machine) -> Iterator[Shortfall]:
    """Devices whose memory is far slower than its data sheet says."""
    yield from _below(benched, machine, ("copy-device", "triad-device"), LEAST_MEMORY)


def pcie(benched: Benched, machine: Machine) -> Iterator[Shortfall]:
    """Devices to which pinned memory is copied far slower than their PCIe lanes carry."""
    ids = ("copy-host-to-device-pinned", "copy-device-to-host-pinned")
    yield from _below(benched, machine, ids, LEAST_PCIE)


def gpu_of(benched: Benched, machine: Machine, device: str) -> Gpu | None:
    """The driver's GPU behind a torch device: by torch's number only if torch sees all GPUs."""
    facts = next((row for row in benched.devices if row.device == device), None)
    cards = [gpu for gpu in machine.gpus or () if gpu.driver_sees is not False]
    if facts is not None and facts.uuid is not None:
        gpu_by_uuid = next((gpu for gpu in cards if gpu.uuid == facts.uuid), None)
        if gpu_by_uuid is not None:
            return gpu_by_uuid
    number = device.partition(":")[2]
    if number.isdecimal() and len(cards) == len(benched.devices):
        return next((gpu for gpu in cards if gpu.index == int(number)), None)
    return None


def other_programs(gpu: Gpu | None) -> tuple[str, ...]:
    """Other programs that were on the GPU before anything was measured."""
    processes = gpu.processes if gpu is not None and gpu.processes else ()
    return tuple(
        f"{process.name or 'a program'} (process {process.pid}, {units.size(process.memory_bytes)})"
        for process in processes
        if process.memory_bytes is None or process.memory_bytes >= PROGRAM_BYTES
    )


def value(benched: Benched, ceiling_id: str) -> float | None:
    """The measured value of that ceiling, or None if not measured."""
    values = (ceiling.value for ceiling in benched.ceilings if ceiling.id == ceiling_id)
    return next((value for value in values if value is not None), None)


def _below(
    benched: Benched, machine: Machine, ids: Sequence[str], least: float
) -> Iterator[Shortfall]:
    for device in _devices(benched):
        rows = [ceiling for ceiling in _on(benched, device) if ceiling.id in ids]
        shortfall = _shortfall(benched, machine, rows)
        if shortfall is not None and shortfall.share < least:
            yield shortfall


def _shortfall(benched: Benched, machine: Machine, rows: Sequence[Ceiling]) -> Shortfall | None:
    """The shortfall of the ceiling that comes nearest to its data sheet."""
    shares = [
        (ceiling.value / ceiling.datasheet, ceiling)
        for ceiling in rows
        if ceiling.value and ceiling.datasheet
    ]
    if not shares:
        return None
    share, best = max(shares, key=lambda pair: pair[0])
    names = {device.device: device.name or device.device for device in benched.devices}
    gpu = gpu_of(benched, machine, best.device)
    return Shortfall(best, share, gpu, names.get(best.device, best.device))


def _devices(benched: Benched) -> list[str]:
    return list(
        dict.fromkeys(ceiling.device for ceiling in benched.ceilings if ceiling.device != "cpu")
    )


def _on(benched: Benched, device: str) -> list[Ceiling]:
    return [ceiling for ceiling in benched.ceilings if ceiling.device == device]
