"""How fast `flatout explain` reads a log without matches, and what memory that takes: one process.

The log is what training prints (progress bars, steps, warnings of other programs), made up from
Python's own sources between them so that lines differ. Beside it: the same with colours, with a
rank's prefix on every line, and a log of one error repeated without end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import resource
import statistics
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import record

from flatout.explaining import explaining

GOAL_MB_PER_S = 100.0
BLOCK = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    figures: dict[str, object] = {
        "mb": given.mb,
        "runs": given.runs,
        "goal_mb_per_s": GOAL_MB_PER_S,
    }
    for kind in ("plain", "coloured", "prefixed", "repeated"):
        runs = [
            alone(kind, given.mb if kind == "plain" else given.mb // 4) for _ in range(given.runs)
        ]
        speeds = [run["mb_per_s"] for run in runs]
        figures[kind] = {
            "mb_per_s": {
                "median": round(statistics.median(speeds), 1),
                "lowest": round(min(speeds), 1),
            },
            "memory_grown_mib": max(run["memory_grown_mib"] for run in runs),
            "matches": runs[0]["matches"],
        }
    record.write("explain_speed", figures)


def alone(kind: str, megabytes: int) -> dict[str, float]:
    """Measured in a process of its own, so that the peak of its memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return json.loads(pool.apply(measured, (kind, megabytes)))


def measured(kind: str, megabytes: int) -> str:
    base = made(kind)
    explaining.explain_text("warm up: CUDA out of memory\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    blocks = list(itertools.islice(itertools.cycle(base), megabytes))
    size = sum(map(len, blocks))
    began = time.process_time()
    answer = explaining.explain([(None, iter(blocks))])
    seconds = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return json.dumps(
        {
            "mb_per_s": size / 1e6 / seconds,
            "memory_grown_mib": round(grown, 1),
            "matches": len(answer.matches),
        }
    )


def made(kind: str) -> list[bytes]:
    """Sixteen different blocks of one kind of log."""
    if kind == "repeated":
        line = (
            b"../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: "
            b"block: [%d,0,0], thread: [%d,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        )
        text = b"".join(line % (i % 97, i % 128) for i in range(BLOCK // len(line)))
        return [text] * 16
    dress = {
        "plain": lambda line: line,
        "coloured": lambda line: f"\x1b[32m{line}\x1b[0m",
        "prefixed": lambda line: f"[rank3]: {line}",
    }[kind]
    lines = training_log()
    blocks = []
    for _ in range(16):
        block, size = [], 0
        while size < BLOCK:
            block.append(dress(next(lines)))
            size += len(block[-1]) + 1
        blocks.append(("\n".join(block) + "\n").encode())
    return blocks


def training_log() -> Iterator[str]:
    """Lines of a run that goes well."""
    chance = random.Random(1)
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    code = itertools.cycle(
        line
        for path in sources
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if not any(word in line.lower() for word in ("error", "interrupt"))
    )
    for step in itertools.count():
        loss, rate = chance.random(), chance.randrange(9999)
        yield f"epoch {step // 1000} step {step}: loss {loss:.5f}, {rate} samples/s"
        yield f" {step % 100:3d}%|{'#' * (step % 10):<10}| {step}/90000 [00:{step % 60:02d}<15:12]"
        if step % 3 == 0:
            yield f"2026-03-01 12:00:{step % 60:02d},123 INFO trainer: {next(code)}"
        if step % 50 == 0:
            yield "/home/user/train.py:12: UserWarning: the schedule changed the learning rate"


if __name__ == "__main__":
    main()
