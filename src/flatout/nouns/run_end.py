"""RunEnd: what is known about one `flatout run` after the program has ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.nouns.ranks import RanksEnd


@dataclass(frozen=True)
class RunEnd:
    """Figures of the whole run. A figure is None if it could not be measured."""

    steps: int
    samples_per_s: float | None = None
    peak_bytes: int | None = None
    """Peak memory in use: of the accelerator, or of the process on a CPU."""
    wait_share: float | None = None
    """Share of the training time spent waiting for the loader."""
    engaged: tuple[str, ...] = ()
    """Boosts that took effect."""
    not_engaged: dict[str, str] = field(default_factory=dict)
    """Boost -> why it did not take effect."""
    faults: tuple[str, ...] = ()
    """Errors in the agent; the program continued without the named part."""
    interrupted: bool = False
    """Whether Ctrl-C ended it."""
    ranks: RanksEnd | None = None
    """How several ranks trained together, or None for one program."""
    notes: tuple[str, ...] = ()
    """What else the user should know, one line each."""
