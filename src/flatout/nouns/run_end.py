"""RunEnd: what is known about one `flatout run` when the program has ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.nouns.ranks import RanksEnd


@dataclass(frozen=True)
class RunEnd:
    """Figures of the whole run. A figure is None if it could not be measured."""

    steps: int
    samples_per_s: float | None = None
    peak_bytes: int | None = None
    """Most memory in use: of the accelerator, on CPU of the process."""
    wait_share: float | None = None
    """Share of the training time spent waiting for the loader."""
    engaged: tuple[str, ...] = ()
    """Boosts that took hold."""
    not_engaged: dict[str, str] = field(default_factory=dict)
    """Boost -> why it did not."""
    faults: tuple[str, ...] = ()
    """Errors inside the agent; the program went on without the part named."""
    interrupted: bool = False
    """By Ctrl-C."""
    ranks: RanksEnd | None = None
    """How several ranks trained together, or None for one program."""
    notes: tuple[str, ...] = ()
    """What else the user should know, one line each."""
