"""A stand-in for `macmon pipe`: a program that prints the lines it is given, then does as told."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NEW = {
    "timestamp": "2026-02-24T20:38:15.427569+00:00",
    "temp": {"cpu_temp_avg": 43.73614, "gpu_temp_avg": 36.95167},
    "memory": {"ram_total": 25769803776, "ram_usage": 20985479168},
    "fans": [
        {"name": "fan0", "rpm": 980, "max_rpm": 4900},
        {"name": "fan1", "rpm": 2600, "max_rpm": 5200},
        {"name": "fan2", "rpm": 1, "max_rpm": None},
    ],
    "gpu_freq_mhz": 461,
    "gpu_scaled_ratio": 0.25,
    "gpu_active_ratio": 0.75,
    "cpu_power": 0.20486385,
    "gpu_power": 12.5,
}
"""What macmon prints now."""
OLD = {
    "temp": {"cpu_temp_avg": 43.73614, "gpu_temp_avg": 0.0},
    "memory": {"ram_total": 25769803776, "ram_usage": 20985479168},
    "gpu_usage": [461, 0.25],
    "gpu_power": 12.5,
}
"""What it printed in 2025."""
PROGRAM = """\
import os, signal, sys, time
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1] + ".pid", "a") as file:
    print(os.getpid(), file=file)
for line in open(sys.argv[1]):
    print(line, end="", flush=True)
if sys.argv[2] != "ends":
    time.sleep(600)
"""


def macmon(folder: Path, lines: Sequence[Any], then: str = "stays") -> Sequence[str]:
    """Its command. lines: texts as they are, others as JSON. then: "stays", "ends", "stubborn"."""
    program, text = folder / "macmon.py", folder / "lines"
    program.write_text(PROGRAM)
    text.write_text("".join(f"{_text(line)}\n" for line in lines))
    return (sys.executable, str(program), str(text), then)


def pids(folder: Path) -> list[int]:
    """Of each time that it was started."""
    file = folder / "lines.pid"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def _text(line: Any) -> str:
    return line if isinstance(line, str) else json.dumps(line)
