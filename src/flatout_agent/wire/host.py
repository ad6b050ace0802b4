"""The part of the contract that is about the host's own time; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FrameSeen:
    """One place in the code that was running."""

    file: str
    """The file as named in reports: relative to where the program was started, or the whole
    path."""
    line: int
    function: str
    package: str = ""
    """The package, or the module of Python's library, that it belongs to; empty for the user's
    own."""
    column: int | None = None
    """Where the expression begins, in bytes of the line, or None if unknown (Python 3.10)."""
    end_line: int | None = None
    end_column: int | None = None


@dataclass(frozen=True)
class StackSeen:
    """One stack in which a thread was seen, with the time that passed meanwhile."""

    frames: tuple[int, ...]
    """Indexes into `HostSeen.frames`, the outermost first."""
    samples: int
    s: float
    """Seconds per step; CPU seconds for a thread other than the one that trains."""
    idle_s: float = 0.0
    """The part of these seconds in which the thread used no CPU: it waited."""
    thread: str = ""
    """The thread's name; empty for the thread that trains."""
    steps: tuple[int, ...] | None = None
    """The sampled steps in which it was seen, counted from 0, or None if unknown."""


@dataclass(frozen=True)
class CoresSeen:
    """The machine's cores that this process may use, and what it got, while steps were watched.

    A value is None if unknown on this system.
    """

    cores: int
    """Usable cores: affinity and quota."""
    physical: int | None
    """The same without hyper-threads."""
    machine: int
    """Cores of the whole machine."""
    quota: float | None = None
    """Quota of the control group in cores, or None if there is none."""
    queued_s: float | None = None
    """Seconds per step in which the thread that lost most was ready to run while no core was
    free."""
    steal_s: float | None = None
    """Seconds per step, over all cores, taken by the host of this virtual machine."""
    throttled_s: float | None = None
    """Seconds per step in which the quota held this process back."""
    others_cores: float | None = None
    """Mean number of cores used by other programs."""
    others: tuple[str, ...] = ()
    """The busiest of them: name (id): cores."""
    threads_where: str | None = None
    """file:line of the script that sets the number of threads."""
    affinity_where: str | None = None
    """file:line of the script that binds the process to some cores."""
    variables: tuple[str, ...] = ()
    """NAME=value of variables that set the number of threads."""


@dataclass(frozen=True)
class HostSeen:
    """Where the host's time went in some undisturbed steps, by sampled stacks."""

    steps: int
    step_s: float
    """Mean time of these steps, without evaluation."""
    frames: tuple[FrameSeen, ...] = ()
    stacks: tuple[StackSeen, ...] = ()
    """The stacks, longest first, without evaluation."""
    worker_stacks: tuple[StackSeen, ...] = ()
    """The stacks of all loader workers together, in seconds of CPU time per step."""
    worker_idle_s: float | None = None
    """Seconds per step, over all workers, in which workers preparing samples used no CPU although a
    core was free, or None if unknown.
    """
    gc_s: float = 0.0
    """Seconds per step in Python's garbage collector, which no stack includes."""
    queued_s: float | None = None
    """Seconds per step in which the training thread could have run but no core was free, or None if
    unknown."""
    idle_known: bool = False
    """Whether this system distinguishes waiting from running, so `idle_s` is meaningful."""
    kind: str = "host"
