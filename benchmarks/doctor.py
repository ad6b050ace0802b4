"""How long `flatout doctor` takes, here and on a composed machine: fresh processes, in turn.

The goal: at most 2 seconds without --deep, torch asked in the user's interpreter included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from machines import composed

GOAL_S = 2.0
MACHINE = composed.write("h100-node", Path(tempfile.mkdtemp()))
FLATOUT = [sys.executable, "-m", "flatout"]
COMMANDS = {
    "doctor_s": [*FLATOUT, "doctor", "--json"],
    "recorded_machine_s": [*FLATOUT, "doctor", "--json", "--machine", str(MACHINE)],
    "explain_s": [*FLATOUT, "explain", "ENV005"],
    "env_install_s": [*FLATOUT, "env", "install"],
    "import_torch_s": [sys.executable, "-c", "import torch"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=11)
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():  # files into the page cache, byte code onto the disk
        seconds(command)
    for _ in range(runs):
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    figures = {name: spread(values) for name, values in times.items()}
    record.write("doctor", {**figures, **asked(), "runs": runs, "goal_doctor_s": GOAL_S})


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    assert done.returncode in (0, 1), command  # 1: the answer is "problems found"
    return time.perf_counter() - began


def asked() -> dict[str, object]:
    """What the doctor says of the machine that was timed."""
    done = subprocess.run(COMMANDS["doctor_s"], check=False, capture_output=True, text=True)
    document = json.loads(done.stdout)
    return {
        "checks": document["checks"],
        "verdict": document["verdict"],
        "codes": [finding["code"] for finding in document["findings"]],
        "torch_imported": document["machine"]["interpreter"]["torch"]["imported"],
    }


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "lowest": round(min(values), 3),
        "highest": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
