"""The processor: its product name, its features and the cores that this process may use."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import psutil

from flatout.nouns.machine import Cpu
from flatout.probing import reading
from flatout.probing.program_answer import ask
from flatout_agent import limits  # host and agent must count alike

CPUINFO = Path("/proc/cpuinfo")
CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
FIRST_PROCESSOR_BYTES = 2**15
"""Enough of /proc/cpuinfo for the first processor; reading all of it takes milliseconds."""
LIMIT_S = 1.0


def cpu() -> Cpu:
    """Everything known about the processor."""
    return Cpu(
        name=name(),
        architecture=platform.machine() or None,
        cores=cores(),
        logical_cores=_count(logical=True),
        physical_cores=_count(logical=False),
        affinity_cores=_affinity(),
        quota_cores=limits.cpu_quota(),
        governor=reading.text(CPUFREQ / "scaling_governor") or None,
        scaling_driver=reading.text(CPUFREQ / "scaling_driver") or None,
        **_features(),
    )


def cores() -> int | None:
    """Cores by affinity and cgroup quota, or None if the system does not report them."""
    try:
        return limits.usable_cores()
    except OSError:
        return None


def name() -> str | None:
    """The processor's product name, such as "AMD EPYC 9B45"."""
    try:
        label = _name()
    except (OSError, subprocess.SubprocessError):
        return None
    return " ".join(label.split()) if label else None


def from_flags(text: str) -> dict[str, bool | None]:
    """Features of the first processor in /proc/cpuinfo, or empty if it lists none."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        words = set(value.split())
        if key.strip() == "flags" and words:
            return {
                "avx2": "avx2" in words,
                "avx512": "avx512f" in words,
                "avx512_bf16": "avx512_bf16" in words,
                "amx_bf16": "amx_bf16" in words,
                "arm_bf16": False,
            }
        if key.strip() == "Features" and words:
            return {**_NO_X86, "arm_bf16": "bf16" in words}
    return {}


def from_sysctl(text: str, arm: bool) -> dict[str, bool | None]:
    """The same from the lines of `sysctl hw.optional`."""
    features = dict(re.findall(r"^hw\.optional\.(\S+): ([01])$", text, re.MULTILINE))
    if not features:
        return {}
    if arm:
        return {**_NO_X86, "arm_bf16": features.get("arm.FEAT_BF16", "0") == "1"}
    return {
        "avx2": features.get("avx2_0", "0") == "1",
        "avx512": features.get("avx512f", "0") == "1",
        "arm_bf16": False,
    }


def from_windows(avx2: bool, avx512: bool, machine: str, build: int) -> dict[str, bool | None]:
    """The same from IsProcessorFeaturePresent; older builds do not know AVX and answer no."""
    if machine.lower() not in ("amd64", "x86"):
        return dict(_NO_X86)
    knows_avx = build >= 19041
    return {
        "avx2": avx2 or (False if knows_avx else None),
        "avx512": avx512 or (False if knows_avx else None),
        "avx512_bf16": False if knows_avx and not avx512 else None,
        "amx_bf16": False if knows_avx and not avx512 else None,
        "arm_bf16": False,
    }


_NO_X86: dict[str, bool | None] = dict.fromkeys(
    ("avx2", "avx512", "avx512_bf16", "amx_bf16"), False
)


def _count(logical: bool) -> int | None:
    try:
        return psutil.cpu_count(logical=logical) or None
    except (OSError, RuntimeError, ValueError):
        return None


if sys.platform == "win32":

    def _name() -> str | None:
        import winreg

        path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])

    def _features() -> dict[str, bool | None]:
        import ctypes

        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        avx2, avx512 = bool(present(40)), bool(present(41))  # PF_AVX2_..., PF_AVX512F_...
        return from_windows(avx2, avx512, platform.machine(), sys.getwindowsversion().build)

    def _affinity() -> int | None:
        try:
            return len(psutil.Process().cpu_affinity() or ()) or None
        except (psutil.Error, OSError):
            return None

elif sys.platform == "darwin":

    def _name() -> str | None:
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()

    def _features() -> dict[str, bool | None]:
        output = ask(["/usr/sbin/sysctl", "hw.optional"], LIMIT_S).text
        return from_sysctl(output, arm=platform.machine() == "arm64")

    def _affinity() -> int | None:
        return None

else:

    def _name() -> str | None:
        return _from_cpuinfo(_first_processor())

    def _features() -> dict[str, bool | None]:
        try:
            return from_flags(_first_processor())
        except OSError:
            return {}

    def _first_processor() -> str:
        with CPUINFO.open("rb") as file:
            return file.read(FIRST_PROCESSOR_BYTES).decode(errors="replace")

    def _affinity() -> int | None:
        try:
            return len(os.sched_getaffinity(0))
        except OSError:
            return None


def _from_cpuinfo(text: str) -> str | None:
    """The first "model name" of /proc/cpuinfo; many ARM kernels give none."""
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator and key.strip().lower() in ("model name", "cpu model"):
            return value.strip() or None
    return None
