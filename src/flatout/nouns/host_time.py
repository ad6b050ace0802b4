"""HostTime: which lines of the user's the host's time goes to, by sampled stacks.

All figures are milliseconds of one step of the thread that trains, means over the sampled steps,
unless they say otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from flatout.nouns.place import Place


class HostKind(enum.StrEnum):
    """Whose code the host executes."""

    TORCH = "torch"
    """torch's operators and its Python around them."""
    PYTHON = "python"
    """The user's own Python, with the built-in functions that it calls."""
    LIBRARY = "library"
    """Another package, or a module of Python's library."""
    WAITING = "waiting"
    """No code runs: a file, a lock, a pipe, another process, sleep."""


@dataclass(frozen=True)
class HostLine:
    """One line of the user's own code, the deepest one, with what it calls outside of it."""

    where: Place
    kind: HostKind
    ms: float
    callee: str = ""
    """What the line calls: sklearn.f1_score; for the user's own Python the expression; may be
    empty.
    """
    package: str = ""
    """Whose code that is; empty: the user's own."""
    chain: tuple[Place, ...] = ()
    """The user's lines that led there, the outermost first, without `where` itself."""
    loading: bool = False
    """In the loader: preparing a batch in the process that trains."""
    modelling: bool = False
    """Inside of a module that torch has called, the user's or torch's own: a forward pass."""
    framework: str = ""
    """The package between the line and torch, which runs the loop; empty: the line calls torch."""
    updating: bool = False
    """In an optimizer's step, or in the update of a program without one."""
    hooked: bool = False
    """In a function that torch calls for a module and that is not its forward: a hook."""
    collating: bool = False
    """In the loader's own code below the line: no line of a data set's is known."""
    samples: int = 0
    steps: tuple[int, ...] | None = None
    """The sampled steps it was seen in, counted from 0, or None if unknown."""
    scans: bool = False
    """It tests whether something is in a list, and compares it with one item after the other."""
    grows: bool = False
    """It adds to an array by a new one that takes its place, in each round of a loop, or to one
    that stays from step to step.
    """
    formats: bool = False
    """It turns tensors into text."""


@dataclass(frozen=True)
class HostStack:
    """One sampled stack, for pictures."""

    frames: tuple[str, ...]
    """The outermost first: "train.py:30 clip", "sklearn f1_score"; what a line calls that has no
    frame comes last: "torch operators", "numpy np.sort(a)", "waiting in time.sleep(1)".
    """
    ms: float
    thread: str = ""
    """Empty: the thread that trains; else the thread's name, and `ms` is CPU time."""
    kinds: tuple[HostKind, ...] = ()
    """Whose code each frame is."""


@dataclass(frozen=True)
class HostThread:
    """Another thread of the process, while the training thread takes its steps."""

    name: str
    cpu_ms: float
    """CPU time a step."""
    where: Place | None = None
    """The user's line that takes most of it, or None if no line is the user's."""
    package: str = ""
    """Whose code takes most of it where no line is the user's."""


@dataclass(frozen=True)
class HostTime:
    """The host's side of a step."""

    steps: int
    step_ms: float
    """Mean of the sampled steps, without evaluation."""
    lines: tuple[HostLine, ...]
    """The longest first."""
    stacks: tuple[HostStack, ...] = ()
    """The longest first."""
    threads: tuple[HostThread, ...] = ()
    """Other threads of the process that run Python, the busiest first."""
    worker_lines: tuple[HostLine, ...] = ()
    """Lines of all loader workers, the longest first; milliseconds of CPU time a step."""
    worker_idle_ms: float | None = None
    """In which all workers together waited while they prepared samples, though there was a core."""
    gc_ms: float = 0.0
    """In Python's garbage collector, in no line."""
    queued_ms: float | None = None
    """Time ready to run while no core was free, in no line, or None if unknown here."""
    waited_ms: float = 0.0
    """In which the thread that trains used no CPU, in whatever line, but for the loader."""
    cost_ms: float = 0.0
    """That the thread that samples spent at it, waits for the interpreter included."""
    idle_known: bool = False
    """Whether waiting is told from running."""

    def scale(self, step_ms: float) -> float:
        """From the sampled steps to a step of `step_ms`.

        The sampled ones are longer by what sampling takes, which falls on all lines alike; and
        where other programs take the cores, the time without one is in no line.
        """
        measured_ms = self.step_ms - (self.queued_ms or 0.0)
        return step_ms / measured_ms if measured_ms > 0 else 1.0

    def total_ms(self, *kinds: HostKind, loading: bool = False) -> float:
        """Of these kinds together. loading: of what the loader does, else of all the rest."""
        return total_ms(
            line for line in self.lines if line.kind in kinds and line.loading is loading
        )

    def of(self, *kinds: HostKind, loading: bool = False) -> list[HostLine]:
        """The lines of these kinds, the longest first."""
        return [line for line in self.lines if line.kind in kinds and line.loading is loading]


def total_ms(lines: Iterable[HostLine]) -> float:
    """Milliseconds of a step of all these lines."""
    return sum(line.ms for line in lines)
