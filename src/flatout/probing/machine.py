"""The whole Machine here, from every source; each may fail alone.

The slow ones (the user's Python, NVIDIA's driver, the kernel's log) are asked while the others are
read. What is not there in time is None.
"""

from __future__ import annotations

import dataclasses
import datetime
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from flatout.nouns.gpu import Driver, Gpu
from flatout.nouns.machine import Container, Cpu, Kernel, Limits, Machine, Memory, System, Xid
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
    pythons,
    system,
    toolkits,
    variables,
    xid,
)

T = TypeVar("T")
QUICK_S = 1.5
"""For all of it, where a person waits; starting Python and drawing the answer come on top."""
NVIDIA_S = 8.0
"""A GPU that nobody uses may take seconds to wake where persistence mode is off."""
DEEP_S = interpreter.DEEP_S
ALLOCATED = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""A batch system may show a job fewer GPUs than are on the bus."""


class _Sources:
    """Asks every source at once, each in a thread of its own, and remembers those that failed.

    A hanging file system or driver would keep an ordinary pool of threads, and with it this
    program, from ending.
    """

    def __init__(self, limit_s: float) -> None:
        self.deadline = time.monotonic() + limit_s
        self.unread: list[str] = []

    def left_s(self) -> float:
        """Time for who is asked now."""
        return max(self.deadline - time.monotonic(), 0.05)

    def begin(
        self, name: str, ask: Callable[[], T], limit_s: float = 0.0
    ) -> Callable[[], T | None]:
        """Start to ask; the result waits for the answer, None where there is none in time.

        limit_s: it may have so long from now on, even beyond the time for all.
        """
        until = time.monotonic() + limit_s
        asked: Future[T] = Future()

        def work() -> None:
            try:
                asked.set_result(ask())
            except Exception as error:
                asked.set_exception(error)

        threading.Thread(target=work, daemon=True, name=f"flatout-{name}").start()
        return lambda: self._answer(name, asked, until)

    def _answer(self, name: str, asked: Future[T], until: float) -> T | None:
        try:
            return asked.result(max(self.left_s(), until - time.monotonic()))
        except TimeoutError:
            self.unread.append(f"{name}: no answer in time")
        except Exception as error:
            self.unread.append(f"{name}: {type(error).__name__}: {error}")
        return None


def look(python: str, deep: bool = False, limit_s: float | None = None) -> Machine:
    """The Machine as it is now. python: the interpreter that runs the training.

    deep: wait for torch, and let it use the devices. limit_s: for all of it.
    """
    sources = _Sources(limit_s or (DEEP_S if deep else QUICK_S))
    question = sources.begin("python", lambda: interpreter.start(python, deep))()
    inside = sources.begin("container", container.container)() or Container()
    begun = _begin(sources, python, inside)
    gpus = _begin_gpus(sources)
    machine = Machine(container=inside, **{name: answer() for name, answer in begun.items()})
    machine = _with_gpus(machine, gpus)
    cards = gpus.nvidia()
    if cards is not None and cards.late:
        sources.unread.append(f"nvidia: {cards.late}")
    left_s = sources.left_s()
    answered = sources.begin(
        "python", lambda: question.answer(left_s) if question else None, left_s + 1.0
    )
    return dataclasses.replace(
        machine,
        interpreter=answered(),
        unread=tuple(dict.fromkeys(sources.unread)),
        recorded=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _begin(sources: _Sources, python: str, inside: Container) -> dict[str, Callable[[], Any]]:
    """What the operating system, its files and its folders tell, by the Machine's fields."""

    def known(name: str, ask: Callable[[], T], unknown: Callable[[], T]) -> Callable[[], T]:
        answer = sources.begin(name, ask)
        return lambda: answer() or unknown()

    return {
        "system": known("system", system.system, System),
        "cpu": known("cpu", cpu.cpu, Cpu),
        "memory": known("memory", memory.memory, Memory),
        "limits": known("limits", limits.limits, Limits),
        "kernel": known("kernel", lambda: kernel.kernel(inside), Kernel),
        "disks": sources.begin("disks", disk.disks),
        "network_ports": sources.begin("network", infiniband.network_ports),
        "environment": sources.begin("environment", variables.environment),
        "toolkits": sources.begin("toolkits", toolkits.toolkits),
        "libraries": sources.begin("libraries", libraries.libraries),
        "pythons": sources.begin("pythons", lambda: pythons.pythons(python)),
    }


@dataclass(frozen=True)
class _Gpus:
    """What drivers and the bus were asked."""

    nvidia: Callable[[], nvidia.Nvidia | None]
    bus: Callable[[], tuple[Gpu, ...] | None]
    others: tuple[Callable[[], tuple[tuple[Gpu, ...] | None, Driver | None] | None], ...]
    xids: Callable[[], tuple[Xid, ...] | None]


def _begin_gpus(sources: _Sources) -> _Gpus:
    def of(vendor: Any) -> tuple[tuple[Gpu, ...] | None, Driver | None]:
        gpus = vendor.gpus()
        return gpus, vendor.driver(gpus)

    trace = nvidia.trace()
    return _Gpus(
        nvidia=sources.begin("nvidia", lambda: nvidia.nvidia(limit_s=NVIDIA_S), NVIDIA_S + 1),
        bus=sources.begin("pci", pci.gpus),
        others=(
            sources.begin("amd", lambda: of(amd)),
            sources.begin("intel", lambda: of(intel)),
            sources.begin("apple", lambda: of(apple)),
        ),
        xids=sources.begin("kernel log", lambda: xid.xids(trace)),
    )


def _with_gpus(machine: Machine, asked: _Gpus) -> Machine:
    """The machine with the GPUs of all vendors, their drivers, and the errors in the log."""
    cards, bus = asked.nvidia(), asked.bus()
    others = [answer for ask in asked.others if (answer := ask()) is not None]
    lists = [cards.gpus if cards else None, *(gpus for gpus, _ in others)]
    told = [gpu for gpus in lists for gpu in gpus or ()]
    drivers = [cards.driver if cards else None, *(driver for _, driver in others)]
    answered = {"nvidia"} if cards is not None and cards.gpus is not None else set()
    allocated = any(name in (machine.environment or {}) for name in ALLOCATED)
    partial = allocated or machine.container.kind is not None
    nothing = bus is None and all(gpus is None for gpus in lists)
    return dataclasses.replace(
        machine,
        gpus=None if nothing else merged(told, bus, answered, partial),
        gpu_pairs=cards.pairs if cards else None,
        drivers=tuple(driver for driver in drivers if driver is not None),
        kernel=dataclasses.replace(machine.kernel, xids=asked.xids()),
    )


def merged(
    told: Sequence[Gpu], bus: Iterable[Gpu] | None, asked: set[str], partial: bool
) -> tuple[Gpu, ...]:
    """The GPUs that drivers tell of, completed by what the bus shows, and those it shows alone.

    asked: vendors whose driver answered, so that what it leaves out it does not see. partial: this
    process may be given fewer GPUs than there are; those that only the bus shows are then others'.
    """
    found = list(told)
    for card in bus or ():
        match = next((n for n, gpu in enumerate(found) if _same(gpu, card)), None)
        if match is not None:
            found[match] = _completed(found[match], card)
            continue
        seen = any(gpu.vendor == card.vendor for gpu in told)
        if partial and seen:
            continue
        sees = False if card.vendor in asked else card.driver_sees
        found.append(dataclasses.replace(card, driver_sees=sees))
    return tuple(found)


def _same(gpu: Gpu, card: Gpu) -> bool:
    if gpu.pci_address is not None and card.pci_address is not None:
        return gpu.pci_address == card.pci_address
    # Windows' list of adapters has no addresses: there a name stands for one card.
    return gpu.vendor == card.vendor and gpu.name is not None and gpu.name == card.name


def _completed(gpu: Gpu, card: Gpu) -> Gpu:
    """What the driver does not tell, from the bus."""
    missing: dict[str, Any] = {
        item.name: getattr(card, item.name)
        for item in dataclasses.fields(Gpu)
        if getattr(gpu, item.name) is None
    }
    return dataclasses.replace(gpu, **missing)
