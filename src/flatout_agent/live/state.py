"""What the tuning needs of the program, and where it stands: what is kept is written here alone."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from flatout_agent import wire
from flatout_agent.live import decide
from flatout_agent.live.candidates import Candidate

if TYPE_CHECKING:
    from flatout_agent.live.checks import Checked
    from flatout_agent.live.guard import GuardVerdict


@dataclass(frozen=True)
class Tick:
    """One unit of work has ended: a step, or a micro-step where steps are made of many."""

    seconds: float
    size: int
    """Elements of the model's inputs in it."""
    clean: bool
    """False: something beside training happened (evaluation, saving, a new shape, a compile)."""


Story = Generator[None, Tick, None]


class Machinery(Protocol):
    """What the tuning needs of the program: `run.LiveWatch` is one.

    Where several ranks train, every answer is agreed between them: the tuning decides by these
    answers alone, so that all ranks decide the same.
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
    """Where the tuning stands."""

    kept: list[Candidate] = field(default_factory=list)
    written_s: float = math.nan
    """Seconds of one unit as written, as last measured."""
    gain: float = 1.0
    """Speed with all that is kept over speed as written, as far as it is known."""
    pairs: int = 0
    """The fewest pairs that anything that is kept rests on."""
    noise: decide.Noise = decide.PRIOR
    settled: bool = False
    verdict: GuardVerdict | None = None
    """The Guard's last verdict on all that is kept."""

    @property
    def now_s(self) -> float:
        """Seconds of one unit with all that is kept."""
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
        """Keep these, which together are so many times as fast as what is on.

        They replace what is kept under the same name, or cannot be on beside them; returns that.
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
        """Take one out. gain: what it brought beside the others; None: nobody measured that.

        Then the speed is not known until `measured` says it.
        """
        self.kept = [other for other in self.kept if other.id != candidate.id]
        if not self.kept:
            self.gain, self.pairs = 1.0, 0
        elif gain is not None:
            self.gain /= gain
        else:
            self.pairs = 0

    def measured(self, answer: decide.Answer) -> None:
        """All that is kept was compared with the program as written."""
        self.gain, self.pairs = answer.gain, answer.pairs
