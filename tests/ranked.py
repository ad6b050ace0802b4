"""Programs on several ranks, started as the host starts them, without the host.

Each is a fork of a process that has imported torch (`forked`), unless it is asked for one of its
own: in that the agent comes before all others, as it must for what draws numbers of the system.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import forked
from agent_paths import INJECT
from flatout_agent import wire

SEED = 5


@dataclass(frozen=True)
class Ranked:
    """What the ranks did."""

    codes: tuple[int, ...]
    outputs: tuple[str, ...]
    errors: tuple[str, ...]
    records: tuple[wire.Record, ...]

    @property
    def seen(self) -> wire.RanksSeen:
        """The last account of how they trained together."""
        return [record for record in self.records if isinstance(record, wire.RanksSeen)][-1]

    @property
    def refused(self) -> list[wire.RanksRefused]:
        return [record for record in self.records if isinstance(record, wire.RanksRefused)]

    @property
    def faults(self) -> list[wire.Fault]:
        return [record for record in self.records if isinstance(record, wire.Fault)]


def run(
    folder: Path, words: list[str], size: int = 2, timeout_s: float = 120.0, fork: bool = True
) -> Ranked:
    """Run `python *words` as so many ranks; 1: alone, with the same random numbers."""
    return _run(folder, words, range(size), size, timeout_s, fork=fork)


def exchanging(folder: Path, program: str, size: int, *words: str) -> list[Any]:
    """What each rank answers (JSON) of a program called with RANK SIZE STORE and `words`."""
    (folder / "program.py").write_text(program)
    environ = dict(os.environ, PYTHONPATH=str(INJECT.parent.parent), OMP_NUM_THREADS="1")
    own = str(size), str(folder / "store")
    processes = [
        forked.start(["program.py", str(rank), *own, *words], folder, environ)
        for rank in range(size)
    ]
    answers = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * size
    return [json.loads(answer) for answer in answers]


def disturbed(folder: Path, words: list[str], share: float) -> Ranked:
    """Run `python *words` alone, its gradients disturbed by such a share."""
    return _run(folder, words, range(1), 1, 120.0, rounding=share)


def _run(
    folder: Path,
    words: list[str],
    ranks: range,
    size: int,
    timeout_s: float,
    rounding: float = 0.0,
    fork: bool = True,
) -> Ranked:
    records = folder / f"records-{size}"
    records.mkdir(parents=True)
    start = forked.start if fork else forked.start_own
    orders = functools.partial(_environment, folder, records)
    processes = [start(words, folder, orders(rank, size, timeout_s, rounding)) for rank in ranks]
    return ended(processes, records, timeout_s)


def ended(processes: Sequence[forked.Started], records: Path, timeout_s: float) -> Ranked:
    """What became of these ranks, whose records are in that folder."""
    try:
        done = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()  # those that a limit of time has left
    lines = [line for path in sorted(records.iterdir()) for line in path.read_text().splitlines()]
    return Ranked(
        tuple(process.wait() for process in processes),
        tuple(out for out, _ in done),
        tuple(err for _, err in done),
        tuple(wire.record(line) for line in lines),
    )


def _environment(
    folder: Path,
    records: Path,
    rank: int,
    size: int,
    timeout_s: float,
    rounding: float,
) -> dict[str, str]:
    ranks = wire.RankOrders(
        rank,
        size,
        str(folder / f"store-{size}"),
        SEED,
        threads=1,
        scratch=str(folder / f"scratch-{size}-{rank}") if rank else "",
        protect=str(folder),
        timeout_s=timeout_s,
        rounding=rounding,
    )
    pulse = folder / f"pulse-{size}"
    pulse.mkdir(exist_ok=True)
    orders = wire.Orders(str(records), ranks=ranks, pulse=str(pulse))
    if size == 1:
        orders = replace(orders, ranks=replace(ranks, store=""))
    path = folder / f"orders-{size}-{rank}.json"
    path.write_text(wire.dump(orders))
    environ = dict(os.environ, PYTHONPATH=str(INJECT), OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    environ.update({wire.ORDERS_ENV: str(path), wire.RANK_ENV: str(rank), wire.SIZE_ENV: str(size)})
    return environ


def losses(output: str) -> list[float]:
    """The last number of each line that begins with `step`."""
    return [float(line.split()[-1]) for line in output.splitlines() if line.startswith("step")]
