"""What watching costs: the write of a step, the step itself, the monitor, and how soon it shows.

Steps: blocks of them with and without the pulse, in turn, in one process under the agent.
The monitor: with 8 GPUs of a fake driver and 4 running jobs. Screen: on a pseudo-terminal.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import pty
import random
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import record

from flatout.nouns.job_sample import PulseStep
from flatout.nouns.machine_sample import GpuSample, GpuUse, MachineSample
from flatout.running.one.environment import INJECT
from flatout.watching.alert_book import AlertBook
from flatout.watching.rules import JobHistory, TreeSample, View
from flatout.watching.steps import RankSteps
from flatout.watching.thinned import Thinned
from flatout_agent import wire
from flatout_agent.tell.pulse import Pulse

ROOT = Path(__file__).parent.parent
PROGRAM = """
import gc, json, random, statistics, sys, time
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
width, pairs, block = map(int, sys.argv[1:4])
model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, width)

def train(steps):
    wall = []
    for _ in range(steps):
        began = time.perf_counter()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wall.append(time.perf_counter() - began)
    return statistics.median(wall)

train(200)
from flatout_agent.watch.beat import Beat
(beat,) = [item for item in gc.get_objects() if type(item) is Beat]
rows = []
for number in range(pairs):
    order = [False, True]
    random.Random(number).shuffle(order)
    times = {}
    for off in order:
        beat._over = off
        train(2)
        times[off] = train(block)
    rows.append((times[False], times[True]))
beat._over = True
calls = []
for _ in range(5):
    began = time.perf_counter()
    for _ in range(100_000):
        beat.loss_seen(batch)
        beat.step(None, 0.0, None)
    calls.append((time.perf_counter() - began) / 100_000)
print("PAIRS", json.dumps(rows))
print("CALLS", min(calls))
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
PAGE = """
from flatout.reporting.monitor.web.publisher import Publisher
from flatout.reporting.monitor.web.server import serving
from flatout.watching.observing import JobsObserver
from probing.nvml.fake import h100_node

publisher = Publisher()
with serving(publisher) as server, JobsObserver(h100_node()) as observer:
    print(server.url, flush=True)
    for frame in observer.frames():
        publisher.put(frame)
"""
READERS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--width", type=int, default=448, help="sets the length of the step")
    parser.add_argument("--watch-s", type=float, default=45.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = {
            "write_us": write_us(folder),
            "first_frame_s": {"rich": first_frame_s(folder)},
            "step": step(folder, arguments.width, arguments.pairs, block=20),
            "step_of_small_model": step(folder, 8, arguments.pairs, block=100),
            "rules_ms": rules_ms(),
            "monitor": monitor(folder, arguments.watch_s),
            "page": readers(arguments.watch_s),
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


def step(folder: Path, width: int, pairs: int, block: int) -> dict[str, Any]:
    """What the pulse adds to a step: blocks of steps with and without it, in turn, in one process.

    The agent counts and times the steps in both, and calls the pulse, which returns at once where
    it is off: what these calls take is to be added.
    """
    program = folder / "program.py"
    program.write_text(PROGRAM)
    records = Path(tempfile.mkdtemp(dir=folder))
    orders = wire.Orders(str(records), pulse=tempfile.mkdtemp(dir="/dev/shm"))
    (records / "orders").write_text(wire.dump(orders))
    done = subprocess.run(
        [sys.executable, str(program), str(width), str(pairs), str(block)],
        env=dict(
            os.environ,
            OMP_NUM_THREADS="1",
            PYTHONPATH=str(INJECT),
            **{wire.ORDERS_ENV: str(records / "orders")},
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    rows = json.loads(lines["PAIRS"])
    return {
        "ms": round(1000 * statistics.median(without for _, without in rows), 4),
        "ratio": interval([pulse / without for pulse, without in rows]),
        "added_us": interval([1e6 * (pulse - without) for pulse, without in rows]),
        "calls_us": round(1e6 * float(lines["CALLS"]), 3),
        "pairs": len(rows),
    }


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
        drain(descriptor)
        os.waitpid(pid, 0)
        os.close(descriptor)
    return round(statistics.median(seconds), 3)


def drain(descriptor: int) -> None:
    """Read until the program has closed its terminal."""
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:  # how Linux tells that
        pass


def rules_ms() -> float:
    """All rules about 8 GPUs and 4 jobs with an hour behind them, a second: the mean of a minute.

    Their histories are as long as they get.
    """
    now_s = time.time()
    gpus = tuple(
        GpuSample(
            index=number,
            vendor="nvidia",
            utilization=0.9,
            memory_used_bytes=2**30,
            memory_bytes=80 * 2**30,
            clock_mhz=1700.0,
            processes=(GpuUse(100 + number, 2**30, 0.9),),
        )
        for number in range(8)
    )
    machines: Thinned[MachineSample] = Thinned()
    for second in range(3600):
        machine = MachineSample(now_s - 3600 + second, "node", gpus=gpus, cores=16.0, cpu_cores=4.0)
        history = machines.add(machine)
    jobs = [aged_job(number, now_s) for number in range(4)]
    book = AlertBook()
    began = time.process_time()
    for second in range(60):
        now = now_s + second
        views = [View(now, "node", history, job, jobs) for job in (None, *jobs)]
        book.update(views)
    return round(1000 * (time.process_time() - began) / 60, 2)


def aged_job(number: int, now_s: float, rate: float = 20.0) -> JobHistory:
    """A job that has trained for an hour."""
    dice = random.Random(number)
    rank = RankSteps(0, 100 + number)
    count = int(3600 * rate)
    rank.add(
        PulseStep(
            step=step + 1,
            time_s=now_s - (count - step) / rate,
            duration_s=1 / rate,
            wait_s=0.001,
            loss=2.0 + dice.random(),
            samples=32,
            flags=0,
            shapes=5,
        )
        for step in range(count)
    )
    for second in range(3600):
        memory = 2**30 + dice.randrange(2**20)
        rank.add_tree(TreeSample(now_s - 3600 + second, 1.0, memory))
    rank.history.gpus = (number,)
    return JobHistory(str(number), 100 + number, now_s - 3600, ranks=[rank.history])


def readers(seconds: float) -> dict[str, Any]:
    """The share of a core of the page's server, with no reader and with ten, in turn."""
    environ = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=f"{ROOT / 'src'}:{ROOT / 'tests'}")
    process = subprocess.Popen(
        [sys.executable, "-c", PAGE], stdout=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    watched = psutil.Process(process.pid)
    shares: dict[int, list[float]] = {0: [], READERS: []}
    try:
        time.sleep(5)
        for count in (0, READERS, 0, READERS):
            streams = [stream(url) for _ in range(count)]
            time.sleep(3)
            began, before = time.perf_counter(), used(watched)
            time.sleep(seconds / 2)
            shares[count].append((used(watched) - before) / (time.perf_counter() - began))
            for opened in streams:
                opened.close()
    finally:
        process.terminate()
        process.wait()
    return {f"cores_{count}_readers": round(statistics.fmean(shares[count]), 4) for count in shares}


def stream(url: str) -> socket.socket:
    """A reader that is let in; the system takes what it is sent."""
    address, _, token = url.partition("/#")
    host, _, port = address.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port))
    body = json.dumps({"token": token})
    headers = {"Content-Type": "application/json", "Origin": address}
    connection.request("POST", "/session", body, headers)
    answer = connection.getresponse()
    cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
    answer.read()
    opened = socket.create_connection((host, int(port)))
    threading.Thread(target=emptied, args=(opened,), daemon=True).start()
    opened.sendall(
        f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n\r\n".encode()
    )
    return opened


def emptied(opened: socket.socket) -> None:
    """Take all that comes."""
    try:
        while opened.recv(1 << 16):
            pass
    except OSError:
        pass


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
