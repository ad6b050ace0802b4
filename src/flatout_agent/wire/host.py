"""The part of the contract that is about the host's own time; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FrameSeen:
    """One place in the code that was running."""

    file: str
    """As reports name it: from where the program was started, or the whole path."""
    line: int
    function: str
    package: str = ""
    """The package, or the module of Python's library, that it belongs to; empty: the user's own."""
    column: int | None = None
    """Where the expression begins, in bytes of the line; None: not known (Python 3.10)."""
    end_line: int | None = None
    end_column: int | None = None


@dataclass(frozen=True)
class StackSeen:
    """What one thread was seen doing, with the time that passed meanwhile."""

    frames: tuple[int, ...]
    """Indexes into `HostSeen.frames`, the outermost first."""
    samples: int
    s: float
    """Seconds per step; of a thread other than the one that trains: of CPU time."""
    idle_s: float = 0.0
    """Of these, seconds per step in which the thread used no CPU: it waited."""
    thread: str = ""
    """Empty: the thread that trains; else the thread's name."""
    steps: tuple[int, ...] | None = None
    """Which of the sampled steps it was seen in, the first is 0; None: not known."""


@dataclass(frozen=True)
class CoresSeen:
    """What this process may use of the machine's cores, and what it got, while steps were watched.

    None: not known on this system.
    """

    cores: int
    """Usable: affinity and quota."""
    physical: int | None
    """The same without hyper-threads."""
    machine: int
    """Of the whole machine."""
    quota: float | None = None
    """Of the control group, in cores; None: none."""
    queued_s: float | None = None
    """Per step, of the thread that lost most: ready to run while no core was free."""
    steal_s: float | None = None
    """Per step, of all cores: taken by the host of this virtual machine."""
    throttled_s: float | None = None
    """Per step: held back by the quota."""
    others_cores: float | None = None
    """Mean number of cores that other programs used."""
    others: tuple[str, ...] = ()
    """The busiest of them: name (id): cores."""
    threads_where: str | None = None
    """file:line of the script that sets the number of threads."""
    affinity_where: str | None = None
    """file:line of the script that binds the process to some cores."""
    variables: tuple[str, ...] = ()
    """NAME=value of those that set the number of threads."""


@dataclass(frozen=True)
class HostSeen:
    """Where the host's time went in some undisturbed steps, by sampled stacks."""

    steps: int
    step_s: float
    """Mean time of these steps, without evaluation."""
    frames: tuple[FrameSeen, ...] = ()
    stacks: tuple[StackSeen, ...] = ()
    """The longest first; evaluation is left out."""
    worker_stacks: tuple[StackSeen, ...] = ()
    """Of all loader workers together; seconds of CPU time per step."""
    worker_idle_s: float | None = None
    """Per step in which workers that prepare samples used no CPU although there was a core, all of
    them together; None: not known.
    """
    gc_s: float = 0.0
    """Per step in Python's garbage collector: in no stack."""
    cost_s: float = 0.0
    """Per step that the thread that samples spent at it, waits for the interpreter included."""
    queued_s: float | None = None
    """Per step in which the training thread could have run but no core was free; None: unknown."""
    idle_known: bool = False
    """Whether this system tells waiting from running: `idle_s` means something."""
    kind: str = "host"
