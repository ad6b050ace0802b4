"""The sum over all processes of this machine, as ranks train, by gloo or NCCL.

Each figure is taken by separate processes, which end by themselves (`rank.py`).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from flatout_programs.kernels import sizes
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice
from flatout_programs.tell import MARK

MIB = 2**20
LARGE = {"gloo": 25 * MIB, "nccl": 256 * MIB}
"""Bytes: a bucket of DistributedDataParallel, and a size that saturates NVLink."""
SMALL = 1024
MOST_PROCESSES = 8
START_S = {True: 8.0, False: 45.0}
"""Seconds for processes to import torch and to meet, by `--quick`. The host gives up a little
later."""
LEAST_S = 0.3
PROGRAM = Path(__file__).resolve().parent.parent / "rank.py"


def kernels(setup: Setup) -> list[CeilingKernel]:
    """Bandwidth and latency over the GPUs, and over processes on the cores."""
    cards = [device for device in setup.accelerators if device.startswith("cuda")]
    found: list[CeilingKernel] = []
    if len(cards) > 1:
        over = f"over {len(cards)} devices"
        found += _both(setup, "nccl", cards[0], "all-reduce", over, counts(len(cards)))
    if setup.cores > 1:
        most = min(setup.cores, MOST_PROCESSES)
        found += _both(setup, "gloo", "cpu", "all-reduce-cpu", "between processes", counts(most))
    return found


def counts(most: int) -> list[int]:
    """2, 4, 8 ... ranks, and the most."""
    doubled = [2**power for power in range(1, most.bit_length()) if 2**power < most]
    return [*doubled, most]


def _both(
    setup: Setup, backend: str, device: str, name: str, over: str, ranks: Sequence[int]
) -> list[CeilingKernel]:
    common = {"impossible": _impossible(setup, backend), "starts_processes": True}
    return [
        CeilingKernel(
            name,
            f"all-reduce {over} ({backend}), bus bandwidth",
            device,
            "GB/s",
            partial(bandwidths, setup, backend, ranks),
            2.0,
            note="algorithm bandwidth x 2(n-1)/n, as nccl-tests counts",
            **common,  # type: ignore[arg-type]
        ),
        CeilingKernel(
            f"{name}-latency",
            f"all-reduce {over} ({backend}), a small message",
            device,
            "us",
            partial(latencies, setup, backend, ranks),
            **common,  # type: ignore[arg-type]
        ),
    ]


def _impossible(setup: Setup, backend: str) -> str:
    distributed = setup.torch.distributed
    if not distributed.is_available():
        return "this torch was built without torch.distributed"
    has = distributed.is_nccl_available() if backend == "nccl" else distributed.is_gloo_available()
    return "" if has else f"this torch was built without {backend}"


def bandwidths(
    setup: Setup, backend: str, ranks: Sequence[int], time_slice: Slice
) -> Iterator[Point]:
    """GB/s by the number of ranks, for a large message."""
    size = LARGE[backend]
    for count, seconds in _over(setup, backend, ranks, size, time_slice):
        bus = 2 * (count - 1) / count * size / seconds / 1e9
        yield f"{count} ranks, {sizes.bytes_in_words(size)}", bus


def latencies(
    setup: Setup, backend: str, ranks: Sequence[int], time_slice: Slice
) -> Iterator[Point]:
    """Microseconds by the number of ranks, for a small message."""
    for count, seconds in _over(setup, backend, ranks, SMALL, time_slice):
        yield f"{count} ranks, {sizes.bytes_in_words(SMALL)}", seconds * 1e6


def _over(
    setup: Setup, backend: str, ranks: Sequence[int], size: int, time_slice: Slice
) -> Iterator[tuple[int, float]]:
    for index, count in enumerate(ranks):
        budget_s = max(time_slice.remaining_s() / (len(ranks) - index), LEAST_S)
        yield count, all_reduce_s(setup, backend, count, size, budget_s)


def all_reduce_s(setup: Setup, backend: str, ranks: int, size: int, budget_s: float) -> float:
    """Seconds of one all-reduce of `size` bytes over this many processes.

    Raises RuntimeError with the last output of the first that failed.
    """
    limit_s = budget_s + START_S[setup.quick]
    with tempfile.TemporaryDirectory(prefix="flatout-ranks-", ignore_cleanup_errors=True) as folder:
        orders = {
            "ranks": ranks,
            "backend": backend,
            "store": str(Path(folder, "store")),
            "size": size,
            "budget_s": budget_s,
            "limit_s": limit_s,
            "threads": max(1, setup.cores // ranks),
        }
        with contextlib.ExitStack() as stack:
            processes = []
            for rank in range(ranks):
                file = stack.enter_context(Path(folder, f"{rank}.txt").open("wb"))
                command = [sys.executable, str(PROGRAM), json.dumps({**orders, "rank": rank})]
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
                )
                stack.callback(_end, process)
                processes.append(process)
            failed = _first_failed(processes, time.monotonic() + limit_s)
        if failed is not None:
            text = Path(folder, f"{failed}.txt").read_text(errors="replace").strip()
            last = text.splitlines()[-1][:300] if text else "did not answer in time"
            raise RuntimeError(f"rank {failed} of {ranks}: {last}")
        text = Path(folder, "0.txt").read_text(errors="replace")
        line = next((row for row in text.splitlines() if row.startswith(MARK)), None)
        if line is None:
            raise RuntimeError("rank 0 gave no answer")
        return float(json.loads(line.partition(MARK)[2])["seconds"])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _first_failed(processes: Sequence[subprocess.Popen[bytes]], until: float) -> int | None:
    """The rank that failed or was not done in time, or None if all are done."""
    while True:
        codes = [process.poll() for process in processes]
        bad = [rank for rank, code in enumerate(codes) if code]
        if bad:
            return bad[0]
        if None not in codes:
            return None
        if time.monotonic() > until:
            return codes.index(None)
        time.sleep(0.01)
