"""The processor: its name as sold, and the cores that this process may really use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from flatout_agent.cores import usable_cores  # host and agent must count alike

CPUINFO = Path("/proc/cpuinfo")


def cores() -> int | None:
    """Cores by affinity and cgroup quota; None where the system does not tell."""
    try:
        return usable_cores()
    except OSError:
        return None


def name() -> str | None:
    """The processor's name as its maker sells it, such as "AMD EPYC 9B45"."""
    try:
        found = _name()
    except (OSError, subprocess.SubprocessError):
        return None
    return " ".join(found.split()) if found else None


if sys.platform == "win32":

    def _name() -> str | None:
        import winreg

        path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])

elif sys.platform == "darwin":

    def _name() -> str | None:
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()

else:

    def _name() -> str | None:
        return _from_cpuinfo(CPUINFO.read_text(errors="replace"))


def _from_cpuinfo(text: str) -> str | None:
    """The first "model name" of /proc/cpuinfo; many ARM kernels give none."""
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator and key.strip().lower() in ("model name", "cpu model"):
            return value.strip() or None
    return None
