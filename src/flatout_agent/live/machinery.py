"""What a live tuning needs of the program, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flatout_agent import wire
from flatout_agent.live import guard, paired
from flatout_agent.live.blocks import Tick
from flatout_agent.live.candidates import Candidate

Story = Generator[None, Tick, None]
Check = Generator[None, Tick, guard.GuardVerdict]


class Machinery(Protocol):
    """What the session needs of the program: `watch.live.LiveWatch` is one."""

    recompiles: int

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
    def check(self, candidate: Candidate) -> Check: ...
    def check_together(self, kept: Sequence[Candidate]) -> Check: ...
    def idle(self) -> str | None: ...
    def steps_to_ready(self, boost: str) -> int: ...
    def buffered(self) -> int: ...
    def evaluations(self) -> list[float]: ...
    def sound(self) -> bool: ...
    def synchronized_clock(self) -> float: ...
    def agree(self, value: float, how: str) -> float: ...


@dataclass
class State:
    """Where the tuning stands."""

    kept: list[Candidate] = field(default_factory=list)
    written_s: float = math.nan
    """Seconds of one unit as written, as last measured."""
    now_s: float = math.nan
    """The same with all that is kept."""
    pair_noise: paired.Noise = field(default_factory=lambda: paired.noise([]))
    settled: bool = False
    gains: dict[str, float] = field(default_factory=dict)
    """Measured gain of each kept boost; `plan`: of those that were on from the start."""
    together: guard.GuardVerdict | None = None
    """The guard's last verdict on all that is kept."""

    @property
    def noise(self) -> float | None:
        """Of a pair, where it is known."""
        return self.pair_noise.deviation if self.pair_noise.freedom else None

    @property
    def gain(self) -> float:
        """Speed with all that is kept over speed as written."""
        return math.prod(self.gains.values())

    @property
    def on(self) -> list[wire.BoostOrder]:
        """The boosts that are kept."""
        return [candidate.order for candidate in self.kept]
