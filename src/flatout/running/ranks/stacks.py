"""The stacks of training processes: asking for them, and what they tell of a rank.

A process that hangs answers too; see `flatout_agent.tell.stack_dump`. Its stacks tell where the
rank is and whether it waits for the others.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from flatout.running.one.ring import Ring

MOST_BYTES = 1 << 20
NAME = "stacks.txt"
WAIT_S = 2.0
SILENCE = "it wrote none: it may hang in the kernel, or take the signal itself"
EXCHANGE = "flatout_agent/ranks/"
"""In the paths of the agent's files in which a rank waits for the others."""
HEADER = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
FRAME = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
LIBRARIES = re.compile(r"/(?:site-packages|dist-packages|flatout_agent)/|/lib/python\d|^<")
COLLECTIVES = "/torch/distributed/"
DDP = "/torch/nn/parallel/distributed.py"
"""Here DistributedDataParallel copies the buffers of rank 0, before a forward pass."""
BACKWARD = "/torch/autograd/graph.py"
"""Here it exchanges gradients: torch's C++ shows no frames of its own."""
WAITS = (COLLECTIVES, DDP, BACKWARD)


class RankStacks(NamedTuple):
    """What one rank answered."""

    ring: Ring
    step: int | None
    """Its last step."""
    text: str
    """Empty if it wrote nothing."""


def ask(ranks: Iterable[tuple[Ring, int | None]], wait_s: float = WAIT_S) -> list[RankStacks]:
    """Ask each rank (its ring and last step) and wait for the answers, the lowest step first.

    Ranks that cannot be asked are left out.
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
    """All answers as one text, empty if there are none."""
    parts = []
    for ring, step, text in answers:
        where = "no step yet" if step is None else f"step {step}"
        head = f"rank {ring.header.rank}, process {ring.header.pid}, {where}"
        parts.append(f"{head}\n\n{text.strip() or SILENCE}\n")
    return "\n".join(parts)


def write(text: str, run_folder: str | Path) -> str | None:
    """Write them into the run's folder; returns the file's path, or None if that fails."""
    file = Path(run_folder) / NAME
    try:
        file.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return str(file)


def request(ring: Ring) -> bool:
    """Make the process write its stacks; False if it cannot, or is another process by now.

    A signal that nothing catches would end the program, so the kernel is asked about it first.
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
    """The file that a process writes its stacks to."""
    return ring.path.with_name(f"{ring.path.name}.stacks")


def read(ring: Ring, offset: int = 0) -> str:
    """What was written there from `offset` on, empty if nothing was."""
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
    """Whether the process handles this signal, according to the kernel."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def _complete(text: str) -> bool:
    """Whether the dump is whole: the thread that got the signal comes last."""
    return "Current thread" in text and text.endswith("\n")


def waits_for_others(text: str, native: bool = False) -> bool:
    """Whether a thread is in the exchange between ranks, and not in code called from there.

    native: the program exchanges by itself, through torch's own group.
    """
    for frames in _threads(text):
        if native and frames and any(place in frames[0][0] for place in WAITS):
            return True
        inner = next((path for path, _ in frames if COLLECTIVES not in path), "")
        if EXCHANGE in inner:
            return True
    return False


def place(text: str) -> str | None:
    """The innermost line of the user's own code, as in train.py:88, or None if there is none.

    text: stacks as faulthandler writes them, the innermost frame first.
    """
    threads = list(_threads(text))
    for frames in reversed(threads):  # the thread that got the signal comes last
        for path, line in frames:
            if not LIBRARIES.search(path):
                return f"{PurePath(path).name}:{line}"
    return None


def place_of_error(traceback: str) -> str | None:
    """The same for a traceback as Python prints it, the innermost frame last."""
    frames = [(path.replace("\\", "/"), line) for path, line in FRAME.findall(traceback)]
    own = [(path, line) for path, line in frames if not LIBRARIES.search(path)]
    return f"{PurePath(own[-1][0]).name}:{own[-1][1]}" if own else None


def _threads(text: str) -> Iterator[list[tuple[str, str]]]:
    """The frames of each thread as (path, line)."""
    for part in HEADER.split(text)[1:]:
        yield [(path.replace("\\", "/"), line) for path, line in FRAME.findall(part)]
