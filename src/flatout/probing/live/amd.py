"""AMD's GPUs now, from the files of the amdgpu driver; no program is started.

The compute driver (KFD) reports the programs that compute on them and their memory, in a file
`vram_<GPU's id>` (bytes) for each process. Its process numbers are the machine's own.
"""

from __future__ import annotations

from pathlib import Path

from flatout.nouns.gpu import Gpu
from flatout.nouns.machine_sample import GpuSample, GpuUse
from flatout.probing import amd, reading
from flatout.probing.live.pids import alive

CARDS_EVERY_S = 10.0
"""Cards are looked for anew: drivers may be reloaded."""
PROCESSES_EVERY_S = 10.0


class AmdSampler:
    """The GPUs that amdgpu drives; a sleeping GPU is not woken. root: of /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cards: tuple[Path, ...] = ()
        self._cards_s: float | None = None
        self._uses: dict[str, tuple[GpuUse, ...]] | None = None
        self._uses_s: float | None = None

    def samples(self, now_s: float, first_index: int = 0) -> tuple[GpuSample, ...]:
        """Each GPU now, numbered from `first_index`. now_s: of a clock that only goes forward."""
        if self._cards_s is None or now_s - self._cards_s >= CARDS_EVERY_S:
            self._cards_s, self._cards = now_s, amd.cards(self._root) or ()
        if self._cards and (self._uses_s is None or now_s - self._uses_s >= PROCESSES_EVERY_S):
            self._uses_s, self._uses = now_s, _uses(self._root)
        return tuple(
            self._sample(device, first_index + number) for number, device in enumerate(self._cards)
        )

    def _sample(self, device: Path, index: int) -> GpuSample:
        asleep = amd.asleep(device)
        gpu = Gpu(vendor="amd") if asleep else amd.with_sensors(Gpu(vendor="amd"), device)
        address = device.resolve().name.lower()
        fan = None
        if not asleep:
            monitor = next(iter(reading.entries(device / "hwmon") or ()), device / "hwmon/none")
            turn = reading.number(monitor / "fan1_input")
            most = reading.number(monitor / "fan1_max")
            fan = min(1.0, turn / most) if turn is not None and most else None
        return GpuSample(
            index=index,
            vendor="amd",
            name=reading.text(device / "product_name") or None,
            utilization=0.0 if asleep else gpu.utilization,
            memory_used_bytes=reading.number(device / "mem_info_vram_used"),
            memory_bytes=reading.number(device / "mem_info_vram_total"),
            power_w=gpu.power_w,
            power_limit_w=gpu.power_limit_w,
            power_limit_default_w=gpu.power_limit_default_w,
            temperature_c=gpu.temperature_c,
            clock_mhz=gpu.clock_sm_mhz,
            fan=fan,
            processes=None if self._uses is None else self._uses.get(address, ()),
        )


def _uses(root: Path) -> dict[str, tuple[GpuUse, ...]] | None:
    """The processes that compute, by the GPU's address, or None without a compute driver."""
    folders = reading.entries(root / "sys/class/kfd/kfd/proc")
    if folders is None:
        return None
    nodes = [node for node in amd.nodes(root) if node.gpu_id is not None]
    found: dict[str, list[GpuUse]] = {node.address: [] for node in nodes}
    for folder in folders:
        pid = reading.whole(folder.name)
        for node in nodes if pid is not None else ():
            size = reading.number(folder / f"vram_{node.gpu_id}")
            if pid is not None and size:
                found[node.address].append(GpuUse(pid, size, alive=alive(pid)))
    return {address: tuple(uses) for address, uses in found.items()}
