"""Ask a training process for its stacks, also when it hangs; see `flatout_agent.stack_dump`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from flatout.running.ring import Ring

MOST_BYTES = 1 << 20
NAME = "stacks.txt"
WAIT_S = 2.0
SILENCE = "it wrote none: it may hang in the kernel, or take the signal itself"


class RankStacks(NamedTuple):
    """What one rank answered."""

    ring: Ring
    step: int | None
    """Its last."""
    text: str
    """Empty: nothing."""


def ask(ranks: Iterable[tuple[Ring, int | None]], wait_s: float = WAIT_S) -> list[RankStacks]:
    """Ask each rank (its ring and last step) and wait for the answers, the least far first.

    Those that cannot be asked are left out.
    """
    ordered = sorted(ranks, key=lambda rank: rank[1] or 0)
    before = [(ring, step, size(ring)) for ring, step in ordered]
    asked = [rank for rank in before if request(rank[0])]
    deadline = time.monotonic() + wait_s
    while asked and time.monotonic() < deadline:
        time.sleep(0.05)
        if all(_complete(read(ring, offset)) for ring, _, offset in asked):
            break
    return [RankStacks(ring, step, read(ring, offset)) for ring, step, offset in asked]


def together(answers: Sequence[RankStacks]) -> str:
    """All answers as one text; empty: nobody was asked."""
    parts = []
    for ring, step, text in answers:
        where = "no step yet" if step is None else f"step {step}"
        head = f"rank {ring.header.rank}, process {ring.header.pid}, {where}"
        parts.append(f"{head}\n\n{text.strip() or SILENCE}\n")
    return "\n".join(parts)


def write(text: str, run_folder: str | Path) -> str | None:
    """Write them into the run's folder; the file's path, or None where that cannot be done."""
    file = Path(run_folder) / NAME
    try:
        file.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return str(file)


def request(ring: Ring) -> bool:
    """Make the process write its stacks; False: it cannot, or it is not the one it was.

    A signal that nothing catches would end the program: what the kernel says decides.
    """
    if sys.platform == "win32" or not ring.header.dump_signal or ring.writer_alive() is not True:
        return False
    if not _catches(ring.header.pid, ring.header.dump_signal):
        return False
    try:
        os.kill(ring.header.pid, ring.header.dump_signal)
    except OSError:
        return False
    return True


def path(ring: Ring) -> Path:
    """The file that they are written to."""
    return ring.path.with_name(f"{ring.path.name}.stacks")


def read(ring: Ring, offset: int = 0) -> str:
    """What was written there from `offset` on; empty: nothing."""
    try:
        with path(ring).open("rb") as file:
            file.seek(offset)
            return file.read(MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def size(ring: Ring) -> int:
    """Bytes written there so far."""
    try:
        return path(ring).stat().st_size
    except OSError:
        return 0


def _catches(pid: int, number: int) -> bool:
    """Whether the process handles this signal, as the kernel says."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def _complete(text: str) -> bool:
    """The thread that got the signal is told last."""
    return "Current thread" in text and text.endswith("\n")
