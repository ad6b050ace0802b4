"""What the tuning needs from the program, and its state: only this module writes the
kept boosts.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flatout_agent import wire
from flatout_agent.live import decide
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import GuardVerdict


@dataclass(frozen=True)
class Tick:
    """One unit of work has ended: a step, or a micro-step where steps are made of many."""

    seconds: float
    size: int
    """The number of elements in the model's inputs."""
    clean: bool
    """False if something besides training happened (evaluation, saving, a new shape, a compile)."""


Story = Generator[None, Tick, None]


@dataclass
class Checked:
    """The Guard's answer on some boosts."""

    sound: list[Candidate]
    """The boosts that may be on together."""
    refused: dict[str, GuardVerdict]
    """The verdicts on the others, by id."""
    verdict: GuardVerdict
    """The verdict on the sound ones together, with the numbers of the worst call."""
    idle: dict[str, str] = field(default_factory=dict)
    """The sound ones that did not take hold, and why."""


class Machinery(Protocol):
    """What the tuning needs from the program; implemented by `run.LiveWatch`.

    If several ranks train, they agree on every answer. The tuning decides by these answers alone,
    so all ranks decide the same.
    """

    recompiles: int

    def now(self) -> float: ...
    def look_inside(self) -> Story: ...
    def facts(self) -> wire.JobFacts: ...
    def tell(self, record: wire.Record) -> None: ...
    def report(self) -> None: ...
    def steps(self) -> int: ...
    def planned_steps(self) -> int | None: ...
    def units_per_step(self) -> float: ...
    def on(self) -> list[wire.BoostOrder]: ...
    def switch(self, on: Sequence[wire.BoostOrder]) -> None: ...
    def compile_aside(self, candidate: Candidate) -> Generator[None, Tick, tuple[int, float]]: ...
    def check(self, group: Sequence[Candidate]) -> Generator[None, Tick, Checked]: ...
    def check_together(self, kept: Sequence[Candidate]) -> Generator[None, Tick, GuardVerdict]: ...
    def idle(self, boost: str) -> str | None: ...
    def steps_to_ready(self, boost: str) -> int: ...
    def buffered(self) -> int: ...
    def sound(self) -> bool: ...
    def synchronized_clock(self) -> float: ...
    def agree(self, value: float, how: str) -> float: ...


@dataclass
class State:
    """The state of the tuning."""

    kept: list[Candidate] = field(default_factory=list)
    written_s: float = math.nan
    """Seconds of one unit as written, as last measured."""
    gain: float = 1.0
    """Speed with all kept boosts over speed as written, as far as known."""
    pairs: int = 0
    """The fewest pairs that any kept boost rests on."""
    noise: decide.Noise = decide.PRIOR
    settled: bool = False
    verdict: GuardVerdict | None = None
    """The Guard's last verdict on all kept boosts."""

    @property
    def now_s(self) -> float:
        """Seconds of one unit with all kept boosts."""
        return self.written_s / self.gain

    @property
    def on(self) -> list[wire.BoostOrder]:
        """The boosts that are kept."""
        return [candidate.order for candidate in self.kept]

    @property
    def kept_ids(self) -> list[str]:
        """Their ids, in the order in which they were kept."""
        return [candidate.id for candidate in self.kept]

    def keep(self, group: Sequence[Candidate], gain: float, pairs: int) -> list[Candidate]:
        """Keep these, which together are this many times as fast as what is on.

        They replace kept boosts that have the same name or cannot be on beside them; returns those.
        """
        replaced = [
            other
            for other in self.kept
            if any(other.id == new.id or other.excludes(new) for new in group)
        ]
        self.kept = [other for other in self.kept if other not in replaced] + list(group)
        self.gain *= gain
        self.pairs = min(self.pairs or pairs, pairs)
        return replaced

    def drop(self, candidate: Candidate, gain: float | None) -> None:
        """Take one out. gain: its speed-up beside the others, or None if it was not measured.

        In that case the speed is unknown until `measured` sets it.
        """
        self.kept = [other for other in self.kept if other.id != candidate.id]
        if not self.kept:
            self.gain, self.pairs = 1.0, 0
        elif gain is not None:
            self.gain /= gain
        else:
            self.pairs = 0

    def measured(self, answer: decide.Answer) -> None:
        """Record the comparison of all kept boosts with the program as written."""
        self.gain, self.pairs = answer.gain, answer.pairs
