"""The same training under `flatout run`, under TraceML and alone: what watching costs in each.

The program trains on one thread of a CPU, in steps of some milliseconds and then in small ones.
Each round starts it once for each way of watching, in an order of its own, on a terminal of
160 x 50. What a step costs more is also measured in one process, where less differs. nvitop is
started where there is a GPU.

Give the interpreter that has the other tools and the same torch:

    python -m venv rivals && rivals/bin/pip install torch traceml-ai==0.5.0 nvitop==1.7.2
    python benchmarks/monitor_compare.py --others rivals/bin/python
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import json
import os
import pty
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import monitor_cost
import psutil
import record

ROOT = Path(__file__).parent.parent
PROGRAM = """\
import json, os, statistics, sys, time
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def training(width, batches):
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in batches:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield time.time()


def loaded(count, width):
    samples = torch.utils.data.TensorDataset(torch.randn(6400, width))
    loader = torch.utils.data.DataLoader(samples, batch_size=64)
    for _ in range(count // len(loader)):
        for (batch,) in loader:
            yield batch


ends = []
for end in training(448, loaded(int(sys.argv[1]), 448)):
    ends.append(end)
    if len(ends) == 200:
        open(sys.argv[2], "w").write(str(os.getpid()))
steps = [1000 * (end - begin) for begin, end in zip(ends[200:], ends[201:])]
small = list(training(8, 3000 * [torch.randn(64, 8)]))
small_steps = [1e6 * (end - begin) for begin, end in zip(small[500:], small[501:])]
figures = {
    "first_step": ends[0], "last_step": small[-1], "step_ms": statistics.median(steps),
    "mean_step_ms": statistics.fmean(steps), "small_step_us": statistics.median(small_steps),
}
json.dump(figures, open(sys.argv[3], "w"))
"""
STEP = """\
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
TRACED_STEP = "        with traceml.trace_step(model):\n" + "".join(
    f"    {line}\n" for line in STEP.splitlines()
)
FOR_TRACEML = PROGRAM.replace(
    "import torch\n", 'import torch\nimport traceml_ai as traceml\ntraceml.init(mode="auto")\n', 1
).replace(STEP, TRACED_STEP)
"""As TraceML's guide asks of a loop of your own."""
PAIRS_FOR_TRACEML = """\
import contextlib, json, random, statistics, sys, time
import torch
import traceml_ai as traceml
from torch import nn

traceml.init(mode="auto")
torch.set_num_threads(1)
torch.manual_seed(0)
width, pairs, block = map(int, sys.argv[1:4])
model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, width)


def train(steps, off):
    wall = []
    for _ in range(steps):
        began = time.perf_counter()
        with contextlib.nullcontext() if off else traceml.trace_step(model):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        wall.append(time.perf_counter() - began)
    return statistics.median(wall)


train(200, False)
rows = []
for number in range(pairs):
    order = [False, True]
    random.Random(number).shuffle(order)
    times = {}
    for off in order:
        train(2, off)
        times[off] = train(block, off)
    rows.append((times[False], times[True]))
json.dump(rows, open(sys.argv[4], "w"))
"""
"""As `monitor_cost.PROGRAM`: blocks of steps with and without `trace_step`, in one process."""
WAYS = ("alone", "flatout run", "flatout run, monitor open", "traceml summary", "traceml cli")


@dataclass
class Watched:
    """What the processes of one run use while it trains, without the training process."""

    pss_mb: list[float] = field(default_factory=list)
    training_rss_mb: list[float] = field(default_factory=list)
    cores: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--others", required=True, help="Python with traceml-ai and nvitop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--pairs", type=int, default=100, help="of blocks in one process")
    parser.add_argument("--add", action="store_true", help="to the rounds measured before")
    arguments = parser.parse_args()
    others = Path(arguments.others).absolute()
    rows = earlier() if arguments.add else []
    for number in range(len(rows), len(rows) + arguments.rounds):
        order = list(WAYS)
        random.Random(number).shuffle(order)
        rows.append({way: run(way, others, arguments.steps) for way in order})
    record.write(
        "monitor_compare",
        {
            "versions": versions(others),
            "lines_changed": {"flatout": 0, "traceml": lines_changed()},
            "ways": {way: summary(way, rows) for way in WAYS},
            "paired": paired(others, arguments.pairs),
            "nvitop": nvitop(others),
            "rounds": rows,
        },
    )


def earlier() -> list[dict[str, Any]]:
    """The rounds in the file of results."""
    path = record.RESULTS / "monitor_compare.json"
    rounds: list[dict[str, Any]] = json.loads(path.read_text())["figures"]["rounds"]
    return rounds


def run(way: str, others: Path, steps: int) -> dict[str, float]:
    """Train once, watched in this way."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, training, figures = (folder / file for file in ("train.py", "pid", "figures"))
        program.write_text(FOR_TRACEML if way.startswith("traceml") else PROGRAM)
        arguments = [str(steps), str(training), str(figures)]
        began = time.time()
        with contextlib.ExitStack() as stack:
            terminals = [stack.enter_context(Terminal(command(way, others, arguments), folder))]
            if way.endswith("monitor open"):
                monitor = [sys.executable, "-m", "flatout", "monitor"]
                terminals.append(stack.enter_context(Terminal(monitor, folder)))
            watched = watch(terminals[0], training, [terminal.process for terminal in terminals])
            terminals[0].process.wait()
        told = json.loads(figures.read_text())
        return {
            "startup_s": round(told["first_step"] - began, 3),
            "end_s": round(terminals[0].ended_s - told["last_step"], 3),
            "step_ms": round(told["step_ms"], 4),
            "mean_step_ms": round(told["mean_step_ms"], 4),
            "small_step_us": round(told["small_step_us"], 1),
            "tool_pss_mb": round(statistics.median(watched.pss_mb), 1),
            "tool_cores": round(watched.cores, 4),
            "training_rss_mb": round(statistics.median(watched.training_rss_mb), 1),
        }


def paired(others: Path, pairs: int) -> dict[str, Any]:
    """What a step costs more with the tool than without: blocks in turn, in one process.

    The hooks that each tool has in torch stay in both; the cost of those is in the rounds alone.
    """
    figures = {}
    for name, width, block in (("step", 448, 20), ("small_step", 8, 100)):
        with tempfile.TemporaryDirectory() as folder:
            flatout = monitor_cost.step(Path(folder), width, pairs, block)
            traceml = traceml_step(Path(folder), others, [str(width), str(pairs), str(block)])
        figures[name] = {"flatout": flatout, "traceml": traceml}
    return figures


def traceml_step(folder: Path, others: Path, sizes: list[str]) -> dict[str, Any]:
    """What TraceML's `trace_step` adds to a step."""
    (folder / "train.py").write_text(PAIRS_FOR_TRACEML)
    rows = folder / "rows"
    with Terminal(command("traceml cli", others, [*sizes, str(rows)]), folder) as terminal:
        terminal.process.wait()
    found = json.loads(rows.read_text())
    return {
        "ms": round(1000 * statistics.median(without for _, without in found), 4),
        "ratio": monitor_cost.interval([traced / without for traced, without in found]),
        "added_us": monitor_cost.interval([1e6 * (traced - without) for traced, without in found]),
        "pairs": len(found),
    }


def command(way: str, others: Path, arguments: list[str]) -> list[str]:
    """The command line that trains."""
    if way.startswith("flatout"):
        return [sys.executable, "-m", "flatout", "run", "--no-plan", "train.py", *arguments]
    if way.startswith("traceml"):
        mode = way.removeprefix("traceml ")
        traceml = str(others.parent / "traceml")
        return [traceml, "run", "--mode", mode, "train.py", "--args", *arguments]
    return [sys.executable, "train.py", *arguments]


class Terminal:
    """A program on a terminal of its own, which is read as it writes."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self.written = b""
        self.ended_s = 0.0
        environ = dict(os.environ, OMP_NUM_THREADS="1", TERM="xterm-256color")
        self.process = subprocess.Popen(
            words, cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # how Linux tells that the other end is closed
            while piece := os.read(self._ours, 65536):
                self.written = (self.written + piece)[-100_000:]
        self.ended_s = time.time()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        for process in tree(self.process):
            with contextlib.suppress(psutil.Error):
                process.terminate()
        self.process.wait()
        self._reader.join(5)
        os.close(self._ours)


def watch(terminal: Terminal, training: Path, roots: Sequence[subprocess.Popen[bytes]]) -> Watched:
    """What the tool's processes use, from step 200 on until shortly before the training ends."""
    while not training.exists() or not training.read_text():
        if terminal.process.poll() is not None:
            raise SystemExit(terminal.written.decode(errors="replace"))
        time.sleep(0.05)
    trainer = psutil.Process(int(training.read_text()))
    watched = Watched()
    time.sleep(0.5)
    tools = [item for root in roots for item in tree(root) if item.pid != trainer.pid]
    began, before = time.perf_counter(), {item: used(item) for item in tools}
    for _ in range(3):
        time.sleep(1.0)
        watched.pss_mb.append(sum(item.memory_full_info().pss for item in tools) / 1e6)
        watched.training_rss_mb.append(trainer.memory_info().rss / 1e6)
    spent = sum(used(item) - then for item, then in before.items())
    watched.cores = spent / (time.perf_counter() - began)
    return watched


def tree(root: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that this one started, and itself."""
    try:
        process = psutil.Process(root.pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def used(process: psutil.Process) -> float:
    """Seconds of CPU time."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def summary(way: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, each with the least and the largest."""
    figures = {name: spread([row[way][name] for row in rows]) for name in rows[0][way]}
    for name in ("step_ms", "mean_step_ms"):
        ratios = [row[way][name] / row["alone"][name] for row in rows]
        figures[f"{name}_over_alone"] = spread(ratios)
    added = [row[way]["small_step_us"] - row["alone"]["small_step_us"] for row in rows]
    figures["added_to_a_small_step_us"] = spread(added)
    return figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, and between what the values lie."""
    median = statistics.median(values)
    return {
        "median": round(median, 4),
        "least": round(min(values), 4),
        "largest": round(max(values), 4),
    }


def lines_changed() -> int:
    """Lines that TraceML adds to the program, beside indentation."""
    before, after = (
        [line.strip() for line in text.splitlines()] for text in (PROGRAM, FOR_TRACEML)
    )
    return sum(line.startswith("+ ") for line in difflib.ndiff(before, after))


def nvitop(others: Path, seconds: float = 10.0) -> dict[str, Any]:
    """What nvitop uses, or why it does not start: it needs NVIDIA's driver."""
    with Terminal([str(others.parent / "nvitop")], ROOT) as terminal:
        time.sleep(5)
        if terminal.process.poll() is not None:
            text = re.sub(r"\x1b\[[0-9;]*m", "", terminal.written.decode(errors="replace"))
            return {"starts": False, "said": next(iter(text.strip().splitlines()), "")}
        process = psutil.Process(terminal.process.pid)
        before = used(process)
        time.sleep(seconds)
        cores = (used(process) - before) / seconds
        pss_mb = process.memory_full_info().pss / 1e6
        return {"starts": True, "cores": round(cores, 4), "pss_mb": round(pss_mb, 1)}


def versions(others: Path) -> dict[str, str]:
    """Of the other tools, and of the torch that trained in all ways."""
    text = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({n: m.version(n) for n in ('traceml-ai', 'nvitop', 'torch')}))"
    )
    done = subprocess.run([others, "-c", text], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
