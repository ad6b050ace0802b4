"""kill -9 of any process of a run on two nodes, at random instants: what is said, what is lost.

python benchmarks/launch_kills.py                # 50 kills: a quarter of an hour on two free cores
python benchmarks/launch_kills.py --kills 6 --seed 3 --dry

Two nodes are two processes of `flatout run --nodes auto` on this machine, each with one rank. A
victim is drawn of all processes there are at that instant: either node's flatout, either rank, the
watchdogs. Then all must end by themselves, with the victim named by those that are left; nothing
may be left running; and the same command once more must come to the losses of a run that nobody
disturbed. Where the run had ended before the kill, there is nothing to name: it counts as `over`
(all losses are printed, and the other node ends with 0), and where nothing was left to kill, the
kill is drawn again. `--dry` writes no results.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import record

sys.path.insert(0, str(record.REPOSITORY / "tests"))
from running import resuming

MARK = "FLATOUT_KILLS_RUN"
STEPS = ("120", "0.05")
LATEST = 0.9
"""Of a kill, as a share of what an undisturbed run on this machine takes."""
LIMIT_S = 240.0
WAIT = "20s"
LEFT_S = 15.0
"""For watchdogs to end what they watch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = losses(folder, "alone", [alone(folder)])
        took_s = duration_s(Path(folder), undisturbed)
        rows: list[dict[str, Any]] = []
        number = 0
        while len(rows) < arguments.kills:
            number, at_s = number + 1, chance.uniform(0.0, LATEST * took_s)
            row = killed(Path(folder), number, at_s, chance, undisturbed)
            sys.stderr.write(f"{number}: {row}\n")
            if row["victim"] != "none":
                rows.append(row)
    figures = summed(rows)
    if arguments.dry:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    else:
        record.write("launch_kills", figures)


def alone(folder: str) -> subprocess.Popen[str]:
    own = Path(folder) / "alone"
    _with_script(own)
    return subprocess.Popen(
        [sys.executable, "train.py", STEPS[0], "0"], cwd=own, stdout=subprocess.PIPE, text=True
    )


def losses(folder: str, name: str, nodes: list[subprocess.Popen[str]]) -> dict[int, str]:
    """What node 0 has printed; all have ended then."""
    outputs = [node.communicate(timeout=LIMIT_S)[0] for node in nodes]
    path = Path(folder) / name / "printed"
    with path.open("a") as file:
        file.write(outputs[0])
    return resuming.losses(path.read_text())


def nodes(folder: Path, mark: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("run", "--no-plan", "--no-trial", "--nodes", "auto", "--nodes-wait", WAIT)
    started = []
    for index in (0, 1):
        environ = dict(
            os.environ,
            FLATOUT_NODES="2",
            FLATOUT_NODE=str(index),
            FLATOUT_LEADER=f"127.0.0.1:{port}",
            FLATOUT_JOB="a secret",
            FLATOUT_NODE_NAME=f"gpu-{index:02d}",
            OMP_NUM_THREADS="1",
        )
        environ[MARK] = mark
        command = [sys.executable, "-m", "flatout", *options, "--ranks", "1", "train.py", *STEPS]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(
            subprocess.Popen(command, cwd=folder, env=environ, text=True, **pipes)  # type: ignore[call-overload]
        )
    return started


@dataclass(frozen=True)
class Victim:
    role: str
    """host, rank, watchdog or another."""
    node: int
    pid: int


def victims(mark: str) -> list[Victim]:
    """All processes of a run."""
    found = []
    for process in psutil.process_iter():
        try:
            environ, words = process.environ(), process.cmdline()
        except (psutil.Error, OSError):
            continue
        if environ.get(MARK) != mark or process.status() == psutil.STATUS_ZOMBIE:
            continue
        role = "other"
        if "flatout.running.one.watchdog" in words:
            role = "watchdog"
        elif "-m" in words and "flatout" in words:
            role = "host"
        elif "FLATOUT_RANK" in environ:
            role = "rank"
        found.append(Victim(role, int(environ["FLATOUT_NODE"]), process.pid))
    return found


def duration_s(folder: Path, undisturbed: dict[int, str]) -> float:
    """Of a run on two nodes in which nothing is killed."""
    _with_script(folder / "whole")
    began = time.monotonic()
    printed = losses(str(folder), "whole", nodes(folder / "whole", f"{os.getpid()}-whole"))
    if printed != undisturbed:
        raise SystemExit("two nodes do not come to the losses of one process: nothing to compare")
    return time.monotonic() - began


def _with_script(own: Path) -> None:
    own.mkdir()
    (own / "train.py").write_text(resuming.program(5))


def killed(
    folder: Path, number: int, at_s: float, chance: random.Random, undisturbed: dict[int, str]
) -> dict[str, Any]:
    """One run in which one process is killed, and the run after it."""
    name = f"kill{number}"
    own = folder / name
    _with_script(own)
    mark = f"{os.getpid()}-{number}"
    job = nodes(own, mark)
    time.sleep(at_s)
    present = victims(mark)
    victim = chance.choice(present) if present else Victim("none", 0, 0)
    if victim.pid:
        os.kill(victim.pid, signal.SIGKILL)
    began = time.monotonic()
    done = [node.communicate(timeout=LIMIT_S) for node in job]
    ended_s = time.monotonic() - began
    (own / "printed").write_text(done[0][0])
    whole = resuming.losses(done[0][0]) == undisturbed and 0 in {node.returncode for node in job}
    over = whole and victim.role in ("host", "rank")  # nobody needs a watchdog
    again = losses(str(folder), name, nodes(own, mark))
    deadline = time.monotonic() + LEFT_S
    while (left := victims(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for each in left:
        os.kill(each.pid, signal.SIGKILL)
    said = [
        line for _, errors in done for line in errors.splitlines() if line.startswith("flatout: ")
    ]
    codes = [node.returncode for node in job]
    return {
        "victim": victim.role,
        "node": victim.node,
        "at_s": round(at_s, 2),
        "ended_s": round(ended_s, 2),
        "codes": codes,
        "said": said,
        "over": over,
        "named": over or is_named(victim, said, codes),
        "resumed": again == undisturbed,
        "left": len(left),
    }


def is_named(victim: Victim, said: list[str], codes: list[int]) -> bool:
    """Whether those that are left have said it; before they had met, that one is missing."""
    text = "\n".join(said)
    if victim.role == "rank":
        words = f"rank {victim.node} of 2 (node gpu-0{victim.node}) ended first: killed by SIGKILL"
        return words in text and codes == [-9, -9]
    if victim.role == "host":
        before = (
            f"node {victim.node} has not come",
            "did not reach node 0" if victim.node == 0 else "-",
            "has ended, or does not answer" if victim.node == 0 else "-",
        )
        named = f"node gpu-0{victim.node} is gone" in text or any(word in text for word in before)
        # 79: it has lost another node; 1: that node has never come.
        return named and codes[1 - victim.node] in (1, 79)
    return codes == [0, 0]  # nobody else needs it


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ended = [row["ended_s"] for row in rows if row["victim"] == "rank"]
    return {
        "kills": len(rows),
        "victims": dict(Counter(row["victim"] for row in rows)),
        "over": sum(row["over"] for row in rows),
        "named": sum(row["named"] for row in rows),
        "resumed_with_nothing_lost": sum(row["resumed"] for row in rows),
        "processes_left": sum(row["left"] for row in rows),
        "rank_killed_to_end_s": {"median": statistics.median(ended), "most": max(ended)}
        if ended
        else None,
        "wrong": [row for row in rows if not (row["named"] and row["resumed"]) or row["left"]],
    }


if __name__ == "__main__":
    main()
