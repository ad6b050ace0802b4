"""Is a script with the line `flatout.live()` as fast as the script under `flatout run --live`?

python benchmarks/live_line.py                       # all scripts: some two hours on two cores
python benchmarks/live_line.py --add vae_digits      # beside the rows that are there

Each script is tuned both ways, one after the other and for the same time: as it is under
`flatout run --live`, and a copy with the line at its top. Then both go on in turn, a block of
steps at a time (`turns.py`), so that what they are compared by stands beside each other.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import record
from breadth import geometric_mean

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
LINE = "import flatout; flatout.live()\n"
GOAL = 0.98
LONG = "10000000"
"""So many steps that the script does not end by itself."""
SCRIPTS = {
    **{name: (HERE / "strangers" / f"{name}.py", ("--steps", LONG)) for name in (
        "matrix_factorization", "vae_digits", "tabular_mlp", "distill_student", "siren_image",
        "dcgan_digits", "gnn_scatter", "vit_patches", "lstm_lm", "char_attention",
    )},
    "images": (EXAMPLES / "images" / "train.py", ("--epochs", LONG, "--out", "out")),
    "text": (EXAMPLES / "text" / "train.py", ("--steps", LONG, "--out", "out")),
    "bert": (EXAMPLES / "bert" / "train.py", ("--steps", LONG, "--out", "out")),
}  # fmt: skip
"""Name -> the script, and its arguments."""
BLOCK_S = 4.0
BLOCKS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--given", type=float, default=90.0, help="seconds for each tuning")
    parser.add_argument("--block", type=float, default=BLOCK_S, help="seconds of a block")
    parser.add_argument("--add", action="store_true", help="keep the rows of earlier runs")
    parser.add_argument("names", nargs="*", default=[*SCRIPTS])
    arguments = parser.parse_args()
    rows = record.rows("live_line") if arguments.add else {}
    for name in arguments.names:
        rows[name] = one(*SCRIPTS[name], arguments.given, arguments.block)
        sys.stderr.write(f"{name}: {rows[name]}\n")
        shares = [row["share"] for row in rows.values()]
        figures = {
            "scripts": len(rows),
            "geometric_mean": round(geometric_mean(shares), 3),
            "worst": min(shares),
            "goal": GOAL,
            "rows": rows,
        }
        record.write("live_line", figures)


@dataclass
class Trained:
    """A process that trains on when it is told to."""

    folder: Path
    process: subprocess.Popen[bytes]
    go: IO[str]
    told: IO[str]

    def step_ms(self) -> float:
        """Median step of the block that ends now."""
        while not select.select([self.told], [], [], 1.0)[0]:
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "stderr").read_text(encoding="utf-8")[-2000:])
        return float(self.told.readline())

    def next_block(self) -> float:
        """Train for a block; its median step in ms."""
        self.go.write("\n")
        self.go.flush()
        return self.step_ms()

    def end(self) -> None:
        """Let the program end, and tell what it has decided."""
        self.go.close()
        self.process.wait()
        self.told.close()


def one(script: Path, words: tuple[str, ...], given_s: float, block_s: float) -> dict[str, Any]:
    """Tune one script both ways, then time both in turn."""
    ways = ("run_live", "line")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        trained: dict[str, Trained] = {}
        for way in ways:
            trained[way] = start(way, script, words, Path(name) / way, given_s, block_s)
            stack.callback(trained[way].process.kill)
            trained[way].step_ms()  # of all steps so far, with those of the tuning
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(BLOCKS):
            for way in ways if number % 2 else reversed(ways):
                times[way].append(trained[way].next_block())
        for way in ways:
            trained[way].end()
        shares = [a / b for a, b in zip(times["run_live"], times["line"], strict=True)]
        return {
            "share": round(statistics.median(shares), 3),
            "shares": [round(share, 3) for share in shares],
            "step_ms": {way: round(statistics.median(times[way]), 3) for way in ways},
            **{way: decided(trained[way].folder) for way in ways},
            "given_s": given_s,
            "commit": record.commit(),
        }


def start(
    way: str, script: Path, words: tuple[str, ...], folder: Path, given_s: float, block_s: float
) -> Trained:
    """Begin to train a copy of the script in a folder of its own."""
    place = folder / "script"
    shutil.copytree(script.parent, place, ignore=shutil.ignore_patterns("__pycache__", "out"))
    copy = place / script.name
    if way == "line":
        copy.write_text(with_line(copy.read_text(encoding="utf-8")), encoding="utf-8")
    for fifo in ("go", "told"):
        os.mkfifo(folder / fifo)
    command = [sys.executable, str(HERE / "turns.py"), str(given_s), str(block_s), str(copy)]
    if way == "run_live":
        command[1:1] = ["-m", "flatout", "run", "--live", "--quiet"]
    process = subprocess.Popen(
        [*command, *words],
        cwd=folder,
        env={**os.environ, "TURNS": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("w"),
    )
    # Opened for both, a FIFO does not wait for its other end, which may never come.
    go, told = (os.open(folder / fifo, os.O_RDWR) for fifo in ("go", "told"))
    return Trained(folder, process, os.fdopen(go, "w"), os.fdopen(told))


def with_line(text: str) -> str:
    """The script with the line before its first statement that may stand after it."""
    body = ast.parse(text).body
    first = next(
        node
        for number, node in enumerate(body)
        if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        and not (number == 0 and isinstance(node, ast.Expr))
    )
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: first.lineno - 1], LINE, *lines[first.lineno - 1 :]])


def decided(folder: Path) -> dict[str, Any]:
    """What was kept at the end, and whether everything was decided by then."""
    told: dict[str, Any] = {}
    for path in folder.glob(".flatout/runs/*/**/*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "settled" in row and "kept" in row:
                told = row
    return {
        "settled": told.get("settled"),
        "boosts": [boost["id"] for boost in told.get("kept", ())],
    }


if __name__ == "__main__":
    main()
