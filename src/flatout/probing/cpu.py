"""The processor: its product name, and the cores that this process may use."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil

from flatout.nouns.machine import Cpu
from flatout.probing import reading
from flatout_agent import limits  # host and agent must count alike

CPUINFO = Path("/proc/cpuinfo")
CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
FIRST_PROCESSOR_BYTES = 2**15
"""Enough of /proc/cpuinfo for the first processor; reading all of it takes milliseconds."""


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


def _count(logical: bool) -> int | None:
    try:
        return psutil.cpu_count(logical=logical) or None
    except (OSError, RuntimeError, ValueError):
        return None


def _name() -> str | None:
    """As the system reports it; many ARM kernels give none. Raises OSError."""
    if sys.platform == "win32":
        import winreg

        path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
    with CPUINFO.open("rb") as file:
        text = file.read(FIRST_PROCESSOR_BYTES).decode(errors="replace")
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator and key.strip().lower() in ("model name", "cpu model"):
            return value.strip() or None
    return None


def _affinity() -> int | None:
    if sys.platform == "darwin":
        return None
    try:
        if sys.platform == "win32":
            return len(psutil.Process().cpu_affinity() or ()) or None
        return len(os.sched_getaffinity(0))
    except (psutil.Error, OSError):
        return None
