"""The GPU of an Apple chip now, from ioreg.

Without root, macOS does not report which program uses the GPU.
"""

from __future__ import annotations

import re

from flatout.nouns.machine_sample import GpuSample
from flatout.probing import apple
from flatout.probing.program_answer import Ask, ask

IOREG = ("/usr/sbin/ioreg", "-r", "-c", "IOAccelerator", "-d", "1", "-w", "0")
LIMIT_S = 1.0
EVERY_S = 2.0
AGAIN_S = 60.0
"""Seconds until ioreg is asked again after it gave no answer."""
BUSY, USED = "Device Utilization %", "In use system memory"
MOST_BYTES = 2**53
"""The driver has reported negative sizes as numbers near 2**64."""


class AppleSampler:
    """The GPU of this Mac, or none if it is not an Apple chip's.

    runner: asks sysctl and ioreg.
    """

    def __init__(self, runner: Ask = ask) -> None:
        self._runner = runner
        words = [
            runner([apple.SYSCTL, "-n", name], apple.SYSCTL_LIMIT_S).text
            for name in ("machdep.cpu.brand_string", "hw.memsize")
        ]
        self._chips = apple.from_sysctl(*words)
        self._ioreg: dict[str, int] = {}
        self._next_s: float | None = None

    def samples(self, now_s: float, first_index: int = 0) -> tuple[GpuSample, ...]:
        """The GPU now; `now_s` is of a clock that only goes forward."""
        if self._chips and (self._next_s is None or now_s >= self._next_s):
            answer = self._runner(IOREG, LIMIT_S)
            self._ioreg = statistics(answer.text) if answer.code == 0 else {}
            self._next_s = now_s + (EVERY_S if self._ioreg else AGAIN_S)
        percent = self._ioreg.get(BUSY)
        return tuple(
            GpuSample(
                index=first_index + number,
                vendor="apple",
                name=chip.name,
                utilization=percent / 100 if percent is not None and percent <= 100 else None,
                memory_used_bytes=self._ioreg.get(USED),
                memory_bytes=chip.memory_bytes,
            )
            for number, chip in enumerate(self._chips)
        )


def statistics(text: str) -> dict[str, int]:
    """The numbers that the driver of an Apple chip's GPU reports; other GPUs' are left out."""
    for entry in re.split(r"^(?=\+-o )", text, flags=re.MULTILINE):
        match = re.search(r'"PerformanceStatistics" = \{([^{}]*)\}', entry)
        if match and entry.startswith("+-o AGX"):
            pairs = re.findall(r'"([^"]+)"=([0-9]{1,20})(?=,|$)', match[1])
            return {name: int(value) for name, value in pairs if int(value) < MOST_BYTES}
    return {}
