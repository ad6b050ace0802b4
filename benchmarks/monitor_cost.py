"""What watching costs: the write of a step, the step itself, the monitor, and how soon it shows.

Steps: the same program with the agent but no pulse, with a pulse, and under `flatout run`, in turn.
The monitor: with 8 GPUs of a fake driver and 4 running jobs. Screen: on a pseudo-terminal.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import record

from flatout.running.environment import INJECT
from flatout_agent import wire
from flatout_agent.pulse import Pulse

ROOT = Path(__file__).parent.parent
PROGRAM = """
import json, statistics, sys, time
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
width = int(sys.argv[1])
model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, width)
wall, cpu = [], []
for _ in range(int(sys.argv[2])):
    began, used = time.perf_counter(), time.process_time()
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    wall.append(time.perf_counter() - began)
    cpu.append(time.process_time() - used)
half = len(wall) // 4
print("TIMES", json.dumps([statistics.median(wall[half:]), statistics.fmean(cpu[half:])]))
"""
JOB = """
import time, torch
w = torch.ones(8, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
end = time.monotonic() + float(__import__("sys").argv[1])
while time.monotonic() < end:
    w.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
"""
MONITOR = """
import json, sys
from flatout.nouns import frame_json
from flatout.watching.observing import JobsObserver
from probing.nvml.fake import h100_node

with JobsObserver(h100_node()) as observer:
    for frame in observer.frames():
        print(json.dumps(frame_json.dump(frame)), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--width", type=int, default=448, help="sets the length of the step")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--watch-s", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = {
            "write_us": write_us(folder),
            "first_frame_s": first_frame_s(folder),
            "step": step(folder, arguments),
            "monitor": monitor(folder, arguments.watch_s),
        }
    record.write("monitor_cost", figures)


def write_us(folder: Path, count: int = 200_000) -> float:
    """One slot, in microseconds: the best of five."""
    rings = folder / "rings"
    rings.mkdir()
    pulse = Pulse(str(rings))
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for number in range(count):
            pulse.step(number, 1.0, 0.1, 32, 2.5, 1)
        best = min(best, (time.perf_counter() - began) / count)
    return round(1e6 * best, 3)


def step(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a step of each kind, and the ratios with their 95% intervals."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    times: dict[str, list[tuple[float, float]]] = {"agent": [], "pulse": [], "run": []}
    for number in range(arguments.rounds):
        order = list(times)
        random.Random(number).shuffle(order)
        for kind in order:
            times[kind].append(timed(kind, program, arguments, folder))
    result: dict[str, Any] = {
        kind: {
            "wall_ms": round(1000 * statistics.median(wall for wall, _ in rows), 4),
            "cpu_ms": round(1000 * statistics.median(cpu for _, cpu in rows), 4),
        }
        for kind, rows in times.items()
    }
    for kind in ("pulse", "run"):
        for index, clock in enumerate(("wall", "cpu")):
            pairs = zip(times[kind], times["agent"], strict=True)
            ratios = [row[index] / base[index] for row, base in pairs]
            result[f"{kind}_over_agent_{clock}"] = interval(ratios)
    return {**result, "rounds": arguments.rounds}


def timed(
    kind: str, program: Path, arguments: argparse.Namespace, folder: Path
) -> tuple[float, float]:
    """(median wall time, mean CPU time) of a step, in seconds."""
    words = [str(program), str(arguments.width), str(arguments.steps)]
    environ = dict(os.environ, OMP_NUM_THREADS="1")
    if kind == "run":
        command = [sys.executable, "-m", "flatout", "run", "--quiet", "--no-plan", *words]
    else:
        records = Path(tempfile.mkdtemp(dir=folder))
        rings = Path(tempfile.mkdtemp(dir="/dev/shm")) if kind == "pulse" else None
        orders = wire.Orders(str(records), pulse=str(rings or ""))
        (records / "orders").write_text(wire.dump(orders))
        environ |= {"PYTHONPATH": str(INJECT), wire.ORDERS_ENV: str(records / "orders")}
        command = [sys.executable, *words]
    done = subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, check=True
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("TIMES "))
    wall, cpu = json.loads(line.removeprefix("TIMES "))
    return wall, cpu


def interval(ratios: list[float]) -> dict[str, Any]:
    """The median with its 95% interval, by resampling."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(4000))
    return {
        "median": round(statistics.median(ratios), 4),
        "interval": [round(medians[100], 4), round(medians[3899], 4)],
    }


def first_frame_s(folder: Path, times: int = 7) -> float:
    """From the command to the machine's line on a terminal, in seconds: the median."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        pid, descriptor = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="30")
            os.execv(sys.executable, [sys.executable, "-m", "flatout", "monitor"])
        seen = b""
        while b"cores" not in seen:
            if select.select([descriptor], [], [], 10.0)[0]:
                seen += os.read(descriptor, 65536)
        seconds.append(time.perf_counter() - began)
        os.write(descriptor, b"q")
        os.waitpid(pid, 0)
        os.close(descriptor)
    return round(statistics.median(seconds), 3)


def monitor(folder: Path, seconds: float) -> dict[str, Any]:
    """Its share of a core, its memory, and how late a step is shown, beside 4 jobs and 8 GPUs."""
    (folder / "job.py").write_text(JOB)
    run = [sys.executable, "-m", "flatout", "run", "--quiet", "--no-plan", "job.py"]
    environ = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=f"{ROOT / 'src'}:{ROOT / 'tests'}")
    jobs = [subprocess.Popen([*run, str(seconds + 90)], cwd=folder, env=environ) for _ in range(4)]
    process = None
    try:
        time.sleep(20)  # until all of them train
        process = subprocess.Popen(
            [sys.executable, "-c", MONITOR], stdout=subprocess.PIPE, text=True, env=environ
        )
        return followed(process, [job.pid for job in jobs], seconds)
    finally:
        for job in [*jobs, *([process] if process is not None else [])]:
            job.terminate()
            job.wait()


def followed(process: subprocess.Popen[str], hosts: list[int], seconds: float) -> dict[str, Any]:
    """Read its frames for so long."""
    assert process.stdout is not None
    watched = [psutil.Process(process.pid), *map(psutil.Process, hosts)]
    shown: set[tuple[str, int]] = set()
    late: list[float] = []
    frames, began, before = 0, time.perf_counter(), None
    while time.perf_counter() - began < seconds:
        document = json.loads(process.stdout.readline())
        now_s = time.time()
        frames += 1
        for job in document["jobs"]:
            for step in job["recent_steps"]:
                if (job["id"], step["step"]) not in shown:
                    shown.add((job["id"], step["step"]))
                    late.append(now_s - step["time_s"])
        if frames == 5:  # its imports and first looks are over
            late, before = [], (time.perf_counter(), [used(watching) for watching in watched])
    assert before is not None
    lasted = time.perf_counter() - before[0]
    shares = [(used(one) - then) / lasted for one, then in zip(watched, before[1], strict=True)]
    return {
        "gpus": len(document["machines"][0]["gpus"]),
        "jobs": sum(job["state"] == "training" for job in document["jobs"]),
        "cores": round(shares[0], 4),
        "memory_mb": round(watched[0].memory_info().rss / 1e6, 1),
        "run_watch_cores": round(statistics.median(shares[1:]), 4),
        "step_to_frame_s": {
            "median": round(statistics.median(late), 3),
            "p99": round(sorted(late)[int(0.99 * len(late))], 3),
        },
        "frames": frames,
    }


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
