"""A stand-in for a program that is tuned while it trains: its speeds are given, and its clock runs
with its steps.

For tests/agent/live/test_recipe.py and the simulated GPU.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from flatout_agent import wire
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.state import Tick


class LiveProgram:
    """A tuning's `Machinery`, of which a subclass says how long a step takes and what is sound."""

    recompiles = 0

    def __init__(self, clock: float) -> None:
        self.clock = clock
        self.taken = 0
        self.records: list[wire.Record] = []
        self._on: list[wire.BoostOrder] = []

    def now(self) -> float:
        return self.clock

    def stepped(self, seconds: float) -> Tick:
        """A step that took so long."""
        self.taken += 1
        self.clock += seconds
        return Tick(seconds, 32, True)

    @property
    def ids(self) -> frozenset[str]:
        """The boosts that are on."""
        return frozenset(order.id for order in self._on)

    def look_inside(self) -> Generator[None, Tick, None]:
        yield

    def compile_aside(self, item: Candidate) -> Generator[None, Tick, tuple[int, float]]:
        yield
        return 1, 0.0

    def tell(self, record: wire.Record) -> None:
        self.records.append(record)

    def report(self) -> None: ...

    def steps(self) -> int:
        return self.taken

    def planned_steps(self) -> int | None:
        return None

    def units_per_step(self) -> float:
        return 1.0

    def on(self) -> list[wire.BoostOrder]:
        return self._on

    def switch(self, on: Sequence[wire.BoostOrder]) -> None:
        self._on = list(on)

    def check_together(self, kept: Sequence[Candidate]) -> Generator[None, Tick, GuardVerdict]:
        yield
        return GuardVerdict(True, "together the same", 1e-6)

    def idle(self, boost: str) -> str | None:
        return None

    def steps_to_ready(self, boost: str) -> int:
        return 0

    def buffered(self) -> int:
        return 0

    def sound(self) -> bool:
        return True

    def synchronized_clock(self) -> float:
        return self.clock

    def agree(self, value: float, how: str) -> float:
        return value
