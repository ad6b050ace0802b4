"""What the driver says of the GPUs again and again while a program runs: means over the samples."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from flatout.nouns import throttles
from flatout.nouns.gpu import Gpu
from flatout.nouns.profile import DeviceSample
from flatout.probing import nvml
from flatout.probing.nvml.gpu import read_gpu
from flatout.probing.nvml.links import Links
from flatout.probing.nvml.questions import Questions

EVERY_S = 0.25


@dataclass
class Sampler:
    """Asks the driver from a thread of its own, in a `with` statement, while it is `on`.

    Without NVML there are no samples. library: pynvml, or a fake of it.
    """

    library: Any = None
    every_s: float = EVERY_S
    on: threading.Event = field(default_factory=threading.Event)
    _seen: list[tuple[Gpu, ...]] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def _ask(self) -> None:
        with nvml.asking(self.library) as ask:
            while ask is not None and not self._end.is_set():
                if self.on.wait(self.every_s) and not self._end.is_set():
                    self._seen.append(_look(ask))
                    self._end.wait(self.every_s)

    def samples(
        self, pids: Collection[int], environ: Mapping[str, str]
    ) -> tuple[DeviceSample, ...]:
        """One for each GPU that these processes use, as far as that can be told."""
        gpus: dict[int, list[Gpu]] = {}
        for look in list(self._seen):
            for gpu in look:
                gpus.setdefault(gpu.index or 0, []).append(gpu)
        used = _used(gpus, pids, environ)
        return tuple(_sample(index, gpus[index]) for index in sorted(used))


def _look(ask: Questions) -> tuple[Gpu, ...]:
    nothing = Links(None, None)
    return tuple(read_gpu(ask, index, handle, nothing) for index, handle in ask.handles().items())


def _used(
    gpus: Mapping[int, Sequence[Gpu]], pids: Collection[int], environ: Mapping[str, str]
) -> set[int]:
    """Where the driver lists the program's processes; else the visible ones that were busy.

    In a container the driver's process numbers are those outside of it.
    """
    listed = {
        index
        for index, looks in gpus.items()
        if any(process.pid in pids for gpu in looks for process in gpu.processes or ())
    }
    if listed:
        return listed
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = [item.strip() for item in visible.split(",")] if visible is not None else None
    return {
        index
        for index, looks in gpus.items()
        if (names is None or str(index) in names or _by_uuid(looks[0].uuid, names))
        and any(gpu.utilization for gpu in looks)
    }


def _by_uuid(uuid: str | None, names: Iterable[str]) -> bool:
    return uuid is not None and any(name and uuid.startswith(name) for name in names)


def _sample(index: int, looks: Sequence[Gpu]) -> DeviceSample:
    return DeviceSample(
        index=index,
        name=looks[0].name,
        utilisation=_mean(gpu.utilization for gpu in looks),
        power_w=_mean(gpu.power_w for gpu in looks),
        power_limit_w=looks[-1].power_limit_w,
        clock_mhz=_mean(gpu.clock_sm_mhz for gpu in looks),
        clock_max_mhz=looks[-1].clock_sm_max_mhz,
        temperature_c=_mean(gpu.temperature_c for gpu in looks),
        throttled=throttles.words(name for gpu in looks for name in gpu.throttles or ()),
        memory_used_bytes=max((gpu.memory_used_bytes or 0 for gpu in looks), default=0) or None,
        memory_bytes=looks[-1].memory_bytes,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
