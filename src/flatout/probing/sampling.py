"""The driver's readings of the GPUs while a program runs, as means over the samples."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from flatout.nouns import throttles
from flatout.nouns.gpu import Gpu
from flatout.nouns.profile import DeviceSample
from flatout.probing import nvml
from flatout.probing.nvml.gpu import read_gpu
from flatout.probing.nvml.links import Links

EVERY_S = 0.25


@dataclass
class Sampler:
    """Polls the driver in its own thread, in a `with` statement, while `on` is set.

    Without NVML there are no samples. library: pynvml, or a fake of it.
    """

    library: Any = None
    every_s: float = EVERY_S
    on: threading.Event = field(default_factory=threading.Event)
    _snapshots: list[tuple[Gpu, ...]] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _poll(self) -> None:
        no_links = Links(None, None)
        with nvml.session(self.library) as ask:
            while ask is not None and not self._end.is_set():
                if self.on.wait(self.every_s) and not self._end.is_set():
                    handles = ask.handles().items()
                    self._snapshots.append(
                        tuple(read_gpu(ask, index, handle, no_links) for index, handle in handles)
                    )
                    self._end.wait(self.every_s)

    def samples(
        self, pids: Collection[int], environ: Mapping[str, str]
    ) -> tuple[DeviceSample, ...]:
        """A sample for each GPU that these processes are known to use."""
        gpus: dict[int, list[Gpu]] = {}
        for snapshot in list(self._snapshots):
            for gpu in snapshot:
                gpus.setdefault(gpu.index or 0, []).append(gpu)
        used_gpus = _used_gpus(gpus, pids, environ)
        return tuple(
            DeviceSample(
                index=index,
                name=seen[0].name,
                utilisation=_mean(gpu.utilization for gpu in seen),
                power_w=_mean(gpu.power_w for gpu in seen),
                power_limit_w=seen[-1].power_limit_w,
                clock_mhz=_mean(gpu.clock_sm_mhz for gpu in seen),
                clock_max_mhz=seen[-1].clock_sm_max_mhz,
                temperature_c=_mean(gpu.temperature_c for gpu in seen),
                throttled=throttles.words(name for gpu in seen for name in gpu.throttles or ()),
                memory_used_bytes=max((gpu.memory_used_bytes or 0 for gpu in seen), default=0)
                or None,
                memory_bytes=seen[-1].memory_bytes,
            )
            for index, seen in sorted(gpus.items())
            if index in used_gpus
        )


def _used_gpus(
    gpus: Mapping[int, Sequence[Gpu]], pids: Collection[int], environ: Mapping[str, str]
) -> set[int]:
    """The GPUs that the driver lists for the program's processes, else the visible busy ones.

    In a container the driver's process numbers are the host's.
    """
    used = {
        index
        for index, snapshots in gpus.items()
        if any(process.pid in pids for gpu in snapshots for process in gpu.processes or ())
    }
    if used:
        return used
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible is not None else None
    visible_gpus = {
        index
        for index, snapshots in gpus.items()
        if names is None
        or str(index) in names
        or any(name and (snapshots[0].uuid or "").startswith(name) for name in names)
    }
    return {index for index in visible_gpus if any(gpu.utilization for gpu in gpus[index])}


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
