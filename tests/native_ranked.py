"""Programs that know ranks themselves, started as `ranked` starts others."""

from __future__ import annotations

import os
from pathlib import Path

import forked
import ranked
from agent_paths import INJECT
from flatout.running.ranks.layout import RankLayout
from flatout.running.ranks.native import NativeStart
from flatout_agent import wire

LIMIT_S = 150.0


def run(
    folder: Path,
    words: list[str],
    how: NativeStart,
    size: int = 2,
    gpus: tuple[str, ...] = (),
) -> ranked.Ranked:
    """Run `python *words` as so many ranks; on CPU cores where no GPUs are named."""
    layout = RankLayout(size, ranked.SEED, 1, gpus, native=how).begun()
    records = folder / f"native-{size}"
    records.mkdir(parents=True)
    processes = [_start(folder, records, words, layout, rank) for rank in range(size)]
    return ranked.ended(processes, records, LIMIT_S)


def _start(
    folder: Path, records: Path, words: list[str], layout: RankLayout, rank: int
) -> forked.Started:
    orders = wire.Orders(str(records), ranks=layout.orders(rank, Path(), "", str(folder)))
    path = folder / f"native-{layout.size}-{rank}.json"
    path.write_text(wire.dump(orders))
    base = dict(os.environ, PYTHONPATH=str(INJECT), PYTHONHASHSEED="0")
    return forked.start(
        words, folder, {**layout.environment(rank, base), wire.ORDERS_ENV: str(path)}
    )
