"""Kernel: one ceiling that can be measured here. Setup: where, with what, and for how long."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout_agent.limits import available_memory, usable_cores
from flatout_programs.kernels import stopwatch

FALLBACK_FREE_BYTES = 2**31
TILE = 2**20
CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHE_BYTES = {"cpu": 2**25, "accelerator": 2**26}
MOST_CACHE_BYTES = 2**29
PAIRED = ("matmul-bf16", "matmul-fp16", "copy-device", "copy-host-to-device-pinned")
"""The kernels that `--quick` measures on further devices: enough to see that one is worse."""


class Slice:
    """The time that one kernel may measure. Unused time goes to the next one."""

    def __init__(self, seconds: float) -> None:
        self._until = stopwatch.now() + seconds
        self.seconds = seconds

    def remaining_s(self) -> float:
        """Seconds left; may be negative."""
        return self._until - stopwatch.now()


Point = tuple[str, float]
"""A size in words, and its measured value."""


@dataclass(frozen=True)
class CeilingKernel:
    """One ceiling."""

    id: str
    title: str
    device: str
    unit: str
    curve: Callable[[Slice], Iterator[Point]]
    """Yields each size as soon as it is measured, small ones first."""
    weight: float = 1.0
    """Its weight in the total time."""
    note: str = ""
    impossible: str = ""
    """Why it cannot be measured here, if so; it is then reported without a value."""
    starts_processes: bool = False
    """Whether `--quick` leaves it out unless requested."""


@dataclass(frozen=True)
class Setup:
    """Where kernels run. torch: the imported module."""

    torch: Any
    quick: bool
    accelerators: tuple[str, ...] = ()
    """cuda:0, xpu:0, mps."""
    cores: int = field(default_factory=usable_cores)

    def has_time_for(self, kernel: CeilingKernel) -> bool:
        """Whether `--quick` has time for it on this device."""
        further = kernel.device in self.accelerators[1:]
        if self.quick and kernel.starts_processes:
            return False
        return not (self.quick and further) or kernel.id in PAIRED

    def free_bytes(self, device: str) -> int:
        """Memory that may be used on the device now."""
        if device.startswith("cuda"):
            return int(self.torch.cuda.mem_get_info(device)[0])
        if device == "cpu":
            available = available_memory()
            return FALLBACK_FREE_BYTES if available is None else available
        return 2 * FALLBACK_FREE_BYTES

    def cache_bytes(self, device: str) -> int:
        """Bytes of its last-level cache: larger data really comes from memory."""
        if device == "cpu":
            byte_sizes = []
            for path in CPU_CACHE.glob("index*/size"):
                try:
                    text = path.read_text(encoding="ascii").strip()
                except OSError:
                    continue
                if text.endswith("K") and text[:-1].isdigit():
                    byte_sizes.append(int(text[:-1]) * 1024)
            return min(max(byte_sizes, default=USUAL_CACHE_BYTES["cpu"]), MOST_CACHE_BYTES)
        if device.startswith("cuda"):
            properties = self.torch.cuda.get_device_properties(device)
            size = getattr(properties, "L2_cache_size", 0)
            return int(size) or USUAL_CACHE_BYTES["accelerator"]
        return USUAL_CACHE_BYTES["accelerator"]

    def random(self, shape: Sequence[int], dtype: Any, device: str) -> Any:
        """Normally distributed values. Zeros, and repeating values, switch fewer transistors: such
        a product draws less power, and seems up to a fifth faster than a real one.
        """
        if dtype.itemsize == 1 or not dtype.is_floating_point:
            return self.torch.randn(*shape, device=device, dtype=self.torch.float32).to(dtype)
        return self.torch.randn(*shape, device=device, dtype=dtype)

    def filled(self, count: int, device: str) -> Any:
        """`count` float32 values, random but repeating, for memory traffic, which does not depend
        on values.
        """
        values = self.torch.empty(count, dtype=self.torch.float32, device=device)
        tile = self.random((min(count, TILE),), self.torch.float32, device)
        for first in range(0, count, TILE):
            part = values[first : first + TILE]
            part.copy_(tile[: part.numel()])
        return values

    def sets(
        self, device: str, make: Callable[[], Any], bytes_each: int, most: int = 64
    ) -> list[Any]:
        """Enough sets of operands that each has left the caches before its next turn. All but the
        first are copies, as drawing random values takes several times as long.
        """
        count = -(-3 * self.cache_bytes(device) // max(bytes_each, 1))
        room = int(self.free_bytes(device) * 0.4) // max(bytes_each, 1)
        with stopwatch.preparing():
            first = make()
            return [first, *(_copy(first) for _ in range(1, min(count, room, most)))]


def _copy(operands: Any) -> Any:
    """Separate tensors: one, or as many as there are, pinned if these are."""
    if isinstance(operands, (list, tuple)):
        return [_copy(operand) for operand in operands]
    copied = operands.clone()
    return copied.pin_memory() if operands.is_pinned() else copied


def threads(torch: Any) -> int:
    """One thread per usable core; torch itself leaves out second hardware threads."""
    return max(1, min(usable_cores(), int(torch.get_num_threads())))


def forget_thread_variables() -> None:
    """Remove limits on a program's threads: a ceiling is that of the machine. Called before torch's
    import.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.pop(name, None)
