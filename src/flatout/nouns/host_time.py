"""HostTime: how the host's time divides among the user's lines, from sampled stacks.

Unless stated otherwise, figures are milliseconds per step of the training thread, averaged over
the sampled steps.
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
    """No code runs: it waits for a file, a lock, a pipe or another process, or sleeps."""


@dataclass(frozen=True)
class HostLine:
    """One line of the user's own code, the deepest in the stack, with what it calls elsewhere."""

    where: Place
    kind: HostKind
    ms: float
    callee: str = ""
    """What the line calls: sklearn.f1_score; for the user's Python the expression; or empty."""
    package: str = ""
    """The package that the code belongs to; empty if it is the user's own."""
    chain: tuple[Place, ...] = ()
    """The user's lines that led there, the outermost first, without `where` itself."""
    loading: bool = False
    """In the loader: preparing a batch in the training process."""
    modelling: bool = False
    """In a forward pass: inside a module called by torch, the user's or torch's own."""
    framework: str = ""
    """The package that runs the loop between line and torch; empty if the line calls torch."""
    updating: bool = False
    """In an optimizer's step, or in the update of a program without an optimizer."""
    hooked: bool = False
    """In a hook: a function that torch calls for a module, other than its forward."""
    collating: bool = False
    """In the loader's own code below the line; no line of a data set is known."""
    samples: int = 0
    steps: tuple[int, ...] | None = None
    """The sampled steps it was seen in, counted from 0, or None if unknown."""
    formats: bool = False
    """It turns tensors into text."""


@dataclass(frozen=True)
class HostStack:
    """One sampled stack, for pictures."""

    frames: tuple[str, ...]
    """The outermost first: "train.py:30 clip", "sklearn f1_score". A callee without a frame comes
    last: "torch operators", "numpy np.sort(a)", "waiting in time.sleep(1)".
    """
    ms: float
    thread: str = ""
    """Empty for the training thread; else the thread's name, and `ms` is CPU time."""
    kinds: tuple[HostKind, ...] = ()
    """Kind of code in each frame."""


@dataclass(frozen=True)
class HostThread:
    """Another thread of the process, while the training thread takes its steps."""

    name: str
    cpu_ms: float
    """CPU time per step."""
    where: Place | None = None
    """The user's line that takes most of it, or None if no line is the user's."""
    package: str = ""
    """The package that takes most of it, if no line is the user's."""


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
    """Lines of all loader workers, the longest first; milliseconds of CPU time per step."""
    worker_idle_ms: float | None = None
    """Time that all workers together waited while preparing samples, though a core was free."""
    gc_ms: float = 0.0
    """Time in Python's garbage collector; not part of any line."""
    queued_ms: float | None = None
    """Time ready to run with no core free; not part of any line. None if unknown here."""
    waited_ms: float = 0.0
    """Time in which the training thread used no CPU, in any line, except in the loader."""
    idle_known: bool = False
    """Whether waiting can be told from running."""

    def scale(self, step_ms: float) -> float:
        """The factor from the sampled steps to a step of `step_ms`.

        Sampling makes steps longer, in all lines alike. If other programs take the cores, the
        time without a core is in no line.
        """
        measured_ms = self.step_ms - (self.queued_ms or 0.0)
        return step_ms / measured_ms if measured_ms > 0 else 1.0

    def total_ms(self, *kinds: HostKind, loading: bool = False) -> float:
        """Time of these kinds together. loading: in the loader only, else outside it only."""
        return total_ms(
            line for line in self.lines if line.kind in kinds and line.loading is loading
        )

    def of(self, *kinds: HostKind, loading: bool = False) -> list[HostLine]:
        """The lines of these kinds, the longest first."""
        return [line for line in self.lines if line.kind in kinds and line.loading is loading]


def total_ms(lines: Iterable[HostLine]) -> float:
    """Milliseconds per step of all these lines."""
    return sum(line.ms for line in lines)
