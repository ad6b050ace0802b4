"""The stacks of all ranks of a job that hangs, the rank that is least far first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from flatout.running import stacks
from flatout.watching.following import FollowedRank

NAME = "stacks.txt"
WAIT_S = 2.0
SILENCE = "it wrote none: it may hang in the kernel, or take the signal itself"


def collect(ranks: Sequence[FollowedRank], wait_s: float = WAIT_S) -> str:
    """Ask each rank, wait for the answers, and put them together; empty: nobody was asked."""
    ordered = sorted(ranks, key=lambda rank: rank.sample().step or 0)
    before = {id(rank): stacks.size(rank.ring) for rank in ordered}
    asked = [rank for rank in ordered if stacks.request(rank.ring)]
    if not asked:
        return ""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        time.sleep(0.05)
        if all(_complete(stacks.read(rank.ring, before[id(rank)])) for rank in asked):
            break
    parts = []
    for rank in asked:
        header, sample = rank.ring.header, rank.sample()
        step = "no step yet" if sample.step is None else f"step {sample.step}"
        text = stacks.read(rank.ring, before[id(rank)]).strip() or SILENCE
        parts.append(f"rank {header.rank}, process {header.pid}, {step}\n\n{text}\n")
    return "\n".join(parts)


def write(text: str, run_folder: str) -> str | None:
    """Write them into the run's folder; the file's path, or None where that cannot be done."""
    path = Path(run_folder) / NAME
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return str(path)


def _complete(text: str) -> bool:
    """The thread that got the signal is told last."""
    return "Current thread" in text and text.endswith("\n")
