"""All facts about this machine, from every source; each may fail on its own.

The slow ones (the user's Python, NVIDIA's driver, the kernel's log) run while the others are read.
A source that does not answer in time gives None.
"""

from __future__ import annotations

import dataclasses
import datetime
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from flatout.nouns.gpu import Driver, Gpu
from flatout.nouns.machine import Container, Cpu, Limits, LinuxKernel, Machine, Memory, System
from flatout.probing import (
    amd,
    apple,
    container,
    cpu,
    disk,
    infiniband,
    intel,
    interpreter,
    kernel,
    libraries,
    limits,
    memory,
    nvidia,
    pci,
    system,
    variables,
    xid,
)

T = TypeVar("T")
VendorAnswer = tuple[tuple[Gpu, ...] | None, Driver | None]
QUICK_S = 1.5
"""Limit for all sources while a person waits; starting Python and drawing add to it."""
NVIDIA_S = 8.0
"""Limit for NVIDIA: an idle GPU without persistence mode may take seconds to wake."""
DEEP_S = interpreter.DEEP_S
ALLOCATED = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""Set by batch systems, which may show a job fewer GPUs than are on the bus."""


class _Sources:
    """Queries all sources at once, each in its own thread, and records those that failed.

    With an ordinary pool of threads, a hanging file system or driver would keep this program from
    ending.
    """

    def __init__(self, limit_s: float) -> None:
        self.deadline = time.monotonic() + limit_s
        self.unread: list[str] = []

    def left_s(self) -> float:
        """Seconds left for a source that is started now."""
        return max(self.deadline - time.monotonic(), 0.05)

    def begin(
        self, name: str, ask: Callable[[], T], limit_s: float = 0.0
    ) -> Callable[[], T | None]:
        """Start a query; the returned function waits for its answer and returns None if late.

        limit_s: the query may take this long from now, even beyond the common deadline.
        """
        deadline = time.monotonic() + limit_s
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(ask())
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True, name=f"flatout-{name}").start()

        def answer() -> T | None:
            try:
                return future.result(max(self.left_s(), deadline - time.monotonic()))
            except TimeoutError:
                self.unread.append(f"{name}: no answer in time")
            except Exception as error:
                self.unread.append(f"{name}: {type(error).__name__}: {error}")
            return None

        return answer


def look(python: str, deep: bool = False, limit_s: float | None = None) -> Machine:
    """The Machine as it is now. python: the interpreter that runs the training.

    deep: wait for torch, and let it use the devices. limit_s: for all sources.
    """
    sources = _Sources(limit_s or (DEEP_S if deep else QUICK_S))
    question = sources.begin("python", lambda: interpreter.start(python, deep))()
    surroundings = sources.begin("container", container.container)() or Container()
    answers = _begin_system(sources, surroundings)
    trace = nvidia.trace()
    nvidia_answer = sources.begin("nvidia", lambda: nvidia.nvidia(limit_s=NVIDIA_S), NVIDIA_S + 1)
    bus = sources.begin("pci", pci.gpus)
    others = [
        sources.begin("amd", lambda: _ask_vendor(amd)),
        sources.begin("intel", lambda: _ask_vendor(intel)),
        sources.begin("apple", lambda: _ask_vendor(apple)),
    ]
    xids = sources.begin("kernel log", lambda: xid.xids(trace))
    machine = Machine(
        container=surroundings, **{name: answer() for name, answer in answers.items()}
    )
    cards = nvidia_answer()
    machine = _with_gpus(machine, cards, bus(), [answer for ask in others if (answer := ask())])
    linux_kernel = dataclasses.replace(machine.kernel, xids=xids())
    if cards is not None and cards.late:
        sources.unread.append(f"nvidia: {cards.late}")
    left_s = sources.left_s()
    interpreter_answer = sources.begin(
        "python", lambda: question.answer(left_s) if question else None, left_s + 1.0
    )
    return dataclasses.replace(
        machine,
        kernel=linux_kernel,
        interpreter=interpreter_answer(),
        unread=tuple(dict.fromkeys(sources.unread)),
        recorded=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _begin_system(sources: _Sources, surroundings: Container) -> dict[str, Callable[[], Any]]:
    """Queries of the operating system, its files and folders, by field of Machine."""

    def source(name: str, ask: Callable[[], T], unknown: Callable[[], T]) -> Callable[[], T]:
        answer = sources.begin(name, ask)
        return lambda: answer() or unknown()

    return {
        "system": source("system", system.system, System),
        "cpu": source("cpu", cpu.cpu, Cpu),
        "memory": source("memory", memory.memory, Memory),
        "limits": source("limits", limits.limits, Limits),
        "kernel": source("kernel", lambda: kernel.kernel(surroundings), LinuxKernel),
        "disks": sources.begin("disks", disk.disks),
        "network_ports": sources.begin("network", infiniband.network_ports),
        "environment": sources.begin("environment", variables.environment),
        "libraries": sources.begin("libraries", libraries.libraries),
    }


def _ask_vendor(vendor: Any) -> VendorAnswer:
    gpus = vendor.gpus()
    return gpus, vendor.driver(gpus)


def _with_gpus(
    machine: Machine,
    cards: nvidia.Nvidia | None,
    bus: tuple[Gpu, ...] | None,
    others: Sequence[VendorAnswer],
) -> Machine:
    """The machine with the GPUs of all vendors and their drivers."""
    lists = [cards.gpus if cards else None, *(gpus for gpus, _ in others)]
    devices = [gpu for gpus in lists for gpu in gpus or ()]
    drivers = [cards.driver if cards else None, *(driver for _, driver in others)]
    answering_vendors = {"nvidia"} if cards is not None and cards.gpus is not None else set()
    allocated = any(name in (machine.environment or {}) for name in ALLOCATED)
    partial = allocated or machine.container.kind is not None
    nothing = bus is None and all(gpus is None for gpus in lists)
    return dataclasses.replace(
        machine,
        gpus=None if nothing else merged(devices, bus, answering_vendors, partial),
        gpu_pairs=cards.pairs if cards else None,
        drivers=tuple(driver for driver in drivers if driver is not None),
    )


def merged(
    devices: Sequence[Gpu], bus: Iterable[Gpu] | None, answering_vendors: set[str], partial: bool
) -> tuple[Gpu, ...]:
    """The GPUs that drivers list, completed from the bus, and those that only the bus shows.

    answering_vendors: vendors whose driver answered and so does not see GPUs that it leaves out.
    partial: this process may have only some GPUs; those only on the bus then belong to others.
    """
    merged_devices = list(devices)
    for card in bus or ():
        match = next((n for n, gpu in enumerate(merged_devices) if _same(gpu, card)), None)
        if match is not None:
            gpu = merged_devices[match]
            from_bus: dict[str, Any] = {
                field.name: getattr(card, field.name)
                for field in dataclasses.fields(Gpu)
                if getattr(gpu, field.name) is None
            }
            merged_devices[match] = dataclasses.replace(gpu, **from_bus)
            continue
        driver_lists_vendor = any(gpu.vendor == card.vendor for gpu in devices)
        if partial and driver_lists_vendor:
            continue
        sees = False if card.vendor in answering_vendors else card.driver_sees
        merged_devices.append(dataclasses.replace(card, driver_sees=sees))
    return tuple(merged_devices)


def _same(gpu: Gpu, card: Gpu) -> bool:
    if gpu.pci_address is not None and card.pci_address is not None:
        return gpu.pci_address == card.pci_address
    # Windows' list of adapters has no addresses; a name identifies one card there.
    return gpu.vendor == card.vendor and gpu.name is not None and gpu.name == card.name
