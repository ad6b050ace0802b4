"""From `flatout launch` to the first step of training: what flatout adds to the engine's own time.

python benchmarks/launch_times.py                  # slurm, ssh, ray: five minutes on a free machine
python benchmarks/launch_times.py --engine ssh --rounds 1 --dry

Two nodes of each engine on this machine (two slurmd, two sshd, two raylets). In turn, the same
small script is submitted to it as one would without flatout (`sbatch` with `srun python train.py`;
`ssh HOST python train.py` for both hosts; `ray job submit` of a driver with a task on each node),
and by `flatout launch --nodes 2 --ranks 1 --yes`. The script writes the times at which it was
started, had imported torch, and had taken its first step, on node 0; the clock starts before the
command. The difference of the medians is what flatout adds: its own start and checks, the packing
of the code, the start of the ranks, their meeting, and the proof that rows can be cut. `--dry`
writes no results.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.REPOSITORY / "tests"))
import launched
import rayed
import slurmed
import sshed

ROUNDS = 5
LIMIT_S = 120.0
SCRIPT = """\
import json, os, sys, time
began = time.time()
import torch
imported = time.time()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0 and os.environ.get("SLURM_NODEID", os.environ.get("FLATOUT_NODE", "0")) == "0":
        with open(sys.argv[1] + ".part", "w") as file:
            json.dump([began, imported, time.time()], file)
        os.replace(sys.argv[1] + ".part", sys.argv[1])
"""
DRIVER = """\
import os, subprocess, sys, ray
ray.init()

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def node(index, target):
    env = {**os.environ, "FLATOUT_NODE": str(index)}
    return subprocess.run([sys.executable, "train.py", target], env=env).returncode

ray.get([node.remote(index, sys.argv[1]) for index in range(2)])
"""
PARTS = ("to_script_s", "torch_s", "first_step_s")
Words = Callable[[Path], list[list[str]]]


@dataclass(frozen=True)
class Engine:
    """How a script is submitted to an engine. The commands of one submission run side by side."""

    folder: Path
    env: dict[str, str]
    plain: Words
    ours: Words


@contextmanager
def slurm(base: Path) -> Iterator[Engine]:
    with slurmed.cluster(_folder(base / "slurm")) as cluster:
        code = _code(base / "slurm-code")
        env = {**_environment(), **cluster.environment}

        def plain(target: Path) -> list[list[str]]:
            batch = ("sbatch", "--nodes=2", "--ntasks-per-node=1", "--output=/dev/null")
            return [[*batch, f"--wrap=srun {sys.executable} train.py {target}"]]

        yield Engine(code, env, plain, _launch("slurm", "--nodes", "2"))


@contextmanager
def ssh(base: Path) -> Iterator[Engine]:
    variables = {"PYTHONPATH": str(record.REPOSITORY / "src"), "OMP_NUM_THREADS": "1"}
    with sshed.machines(_folder(base / "ssh"), variables) as machines:
        code = _code(base / "ssh-code")

        def plain(target: Path) -> list[list[str]]:
            line = f"cd {code} && exec env FLATOUT_NODE={{}} {sys.executable} train.py {target}"
            reach = ("ssh", "-F", str(machines.config))
            return [[*reach, host, line.format(i)] for i, host in enumerate(sshed.HOSTS)]

        words = ("--hosts", ",".join(sshed.HOSTS), "--set", f"config={machines.config}")
        python = ("--python", sys.executable)
        yield Engine(code, _environment(), plain, _launch("ssh", *words, *python))


@contextmanager
def ray(base: Path) -> Iterator[Engine]:
    with rayed.started(rayed.environment(_folder(base / "bin"))) as cluster:
        code = _code(base / "ray-code")
        (code / "driver.py").write_text(DRIVER)

        def plain(target: Path) -> list[list[str]]:
            submit = (rayed.program() or "", "job", "submit", "--address", cluster.address)
            program = ("python", "driver.py", str(target))
            return [[*submit, "--no-wait", "--working-dir", str(code), "--", *program]]

        words = ("--set", f"address={cluster.address}", "--nodes", "2")
        yield Engine(code, cluster.env, plain, _launch("ray", *words))


ENGINES = {"slurm": (slurm, slurmed), "ssh": (ssh, sshed), "ray": (ray, rayed)}


def _environment() -> dict[str, str]:
    source = str(record.REPOSITORY / "src")
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _code(path: Path) -> Path:
    path.mkdir()
    (path / "train.py").write_text(SCRIPT)
    return path


def _launch(*words: str) -> Words:
    options = ("--ranks", "1", "--yes")
    return lambda target: [launched.command(*words, *options, "train.py", str(target))]


def measured(engine: Engine, words: Words, target: Path) -> dict[str, float]:
    """One submission: seconds to the script's start, for its import of torch, to its first step."""
    began = time.time()
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    commands = [
        subprocess.Popen(each, cwd=engine.folder, env=engine.env, text=True, **streams)  # type: ignore[call-overload]
        for each in words(target)
    ]
    while not target.exists():
        if time.time() - began > LIMIT_S:
            for each in commands:
                each.kill()
            raise TimeoutError("\n".join(each.communicate()[0] for each in commands))
        time.sleep(0.02)
    started, imported, stepped = json.loads(target.read_text())
    for each in commands:
        each.communicate(timeout=LIMIT_S)
    time.sleep(2.0)  # what the engine still does belongs to nobody's time
    values = (started - began, imported - started, stepped - imported)
    row = {**dict(zip(PARTS, values, strict=True)), "all_s": stepped - began}
    kept = [path.stat().st_mtime for path in engine.folder.glob(".flatout/launch/*/job.json")]
    if kept and max(kept) > began:  # written once the engine has taken it
        row["of_it_to_submit_s"] = max(kept) - began
    return row


def compared(engine: Engine, rounds: int, folder: Path) -> dict[str, Any]:
    """Both ways in turn; the first time of each, with cold caches, does not count."""
    found: dict[str, list[dict[str, float]]] = {"plain": [], "flatout": []}
    for number in range(rounds + 1):
        for name, words in (("plain", engine.plain), ("flatout", engine.ours)):
            row = measured(engine, words, folder / f"{name}-{number}")
            sys.stderr.write(f"{number} {name}: {row}\n")
            if number:
                found[name].append(row)
    figures: dict[str, Any] = {
        name: {part: round(statistics.median(row[part] for row in rows), 2) for part in rows[0]}
        for name, rows in found.items()
    }
    figures["all_s"] = {
        name: [round(row["all_s"], 2) for row in rows] for name, rows in found.items()
    }
    figures["added_s"] = round(figures["flatout"]["all_s"] - figures["plain"]["all_s"], 2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the clusters are ended then too
    figures: dict[str, Any] = {"rounds": arguments.rounds}
    for name in arguments.engine or ENGINES:
        start, programs = ENGINES[name]
        if why := programs.missing():
            sys.stderr.write(f"{name}: {why}\n")
            figures[name] = {"missing": why}
            continue
        # Short: sockets have paths of limited length.
        with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as folder:
            base = Path(folder)
            try:
                with start(base) as engine:
                    figures[name] = compared(engine, arguments.rounds, _folder(base / "times"))
            except Exception as failed:  # the others are measured all the same
                sys.stderr.write(f"{name}: {failed}\n")
                figures[name] = {"failed": str(failed)[-500:]}
    if arguments.dry:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    else:
        record.write("launch_times", figures)


if __name__ == "__main__":
    main()
