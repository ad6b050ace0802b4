"""Stand-ins for a program that is tuned while it trains: their speeds are given, and their clocks
run with their steps.

For the tests of a live tuning in tests/agent/live and the simulated GPU.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Generator, Sequence
from typing import Any

from flatout_agent import wire
from flatout_agent.boosts import load
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.recipe import Tuning
from flatout_agent.live.state import Checked, Tick


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

    @property
    def told(self) -> list[wire.Decided]:
        """What was decided, in that order."""
        return [record for record in self.records if isinstance(record, wire.Decided)]

    @property
    def blocks(self) -> list[wire.BlockRun]:
        return [record for record in self.records if isinstance(record, wire.BlockRun)]

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


FACTS = wire.JobFacts(
    torch="2.13.0",
    python="3.11.7",
    system="linux",
    device="cpu",
    bf16=True,
    cores=2,
    threads=2,
    models=(wire.ModelFacts("Net", 1_000_000, "float32", "cpu", conv2d=20, matmul=1),),
    optimizers=(wire.OptimizerFacts("AdamW", True, 1_000_000, 40, "float32", None, None),),
    compiler=True,
    step_s=0.05,
    wait_share=0.0,
)


STEP_S = 0.05


Speeds = dict[str, float | Callable[[frozenset[str]], float]]


class Program(LiveProgram):
    """Trains at the speed that its boosts give it."""

    def __init__(
        self,
        speeds: Speeds,
        noise: float = 0.01,
        longer: float = 1.0,
        slow: Callable[[Program], float] = lambda program: 1.0,
        seed: int = 0,
        **verdicts: GuardVerdict,
    ) -> None:
        """longer: so many times STEP_S. slow: how many times as long a disturbed step seems."""
        super().__init__(clock=1_000.0)
        self.speeds, self.noise, self.longer, self.slow = speeds, noise, longer, slow
        self.verdicts = {name.replace("_", "-"): verdict for name, verdict in verdicts.items()}
        self.compile_s: dict[str, float] = {}
        """Seconds that the first call under a boost takes."""
        self.planned: int | None = None
        """Steps of the whole run, by its trainer."""
        self.unsound = ""
        """Under this boost the loss is not finite; "always": also without one."""
        self.unready: dict[str, int] = {}
        """Boost -> the step from which it can show what it gains."""
        self.checked: list[tuple[str, int]] = []
        self.near_for = 1
        """A boost that is near its limit passes after so many refusals."""
        self._random = random.Random(seed)

    def tick(self) -> Tick:
        tick = self.stepped(self.step_s(self.ids) * (1 + self._random.gauss(0, self.noise)))
        return dataclasses.replace(tick, seconds=tick.seconds * self.slow(self))

    def step_s(self, ids: frozenset[str]) -> float:
        seconds = STEP_S * self.longer
        for boost in ids:
            speed = self.speeds.get(boost, 1.0)
            seconds /= speed(ids) if callable(speed) else speed
        return seconds

    def facts(self) -> wire.JobFacts:
        return FACTS

    def planned_steps(self) -> int | None:
        return self.planned

    def check(self, group: Sequence[Candidate]):
        yield
        yield
        self.checked += [(candidate.id, self.taken) for candidate in group]
        refused: dict[str, GuardVerdict] = {}
        for candidate in group:
            self.clock += self.compile_s.pop(candidate.id, 0.0)
            verdict = self.verdicts.get(candidate.id, GuardVerdict(True, "the same", 1e-6))
            looks = [name for name, _ in self.checked].count(candidate.id)
            if not verdict.passed and not (verdict.near and looks > self.near_for):
                refused[candidate.id] = verdict
        sound = [candidate for candidate in group if candidate.id not in refused]
        return Checked(sound, refused, GuardVerdict(True, "the same", 1e-6))

    def check_together(self, kept: Sequence[Candidate]):
        yield
        bad = self.verdicts.get("together")
        if bad is not None and any(item.boost.risk.value != "exact" for item in kept):
            return bad
        return GuardVerdict(True, "together the same", 1e-6)

    def steps_to_ready(self, boost: str) -> int:
        return max(0, self.unready.get(boost, 0) - self.taken)

    def sound(self) -> bool:
        return self.unsound not in {"always", *self.ids}

    # What came of it

    def decided(self) -> dict[str, wire.Decided]:
        """The last word on each boost."""
        return {row.id: row for row in self.told}


def tuning_of(program: Program, *allowed: str, **orders: object) -> Tuning:
    """It has not begun."""
    asked = wire.LiveOrders(allowed=allowed, **orders)  # type: ignore[arg-type]
    return Tuning(program, asked, Budget(asked, program.now))


def under_way(program: Program, kept: Sequence[Candidate] = (), gain: float = 1.0) -> Tuning:
    """Its time has begun, and these were kept after one pair."""
    tuning = tuning_of(program, budget_s=20.0, stop=True)
    tuning.budget.begin()
    tuning.state.written_s = STEP_S
    if kept:
        tuning.state.keep(list(kept), gain, 1)
    return tuning


def candidate(boost: str, promise: float, **more: Any) -> Candidate:
    return Candidate(boost, more.pop("params", {}), load(boost).BOOST, promise, **more)


def tune(
    program: Program,
    *allowed: str,
    steps: int = 20_000,
    planned: Sequence[wire.BoostOrder] = (),
    **orders: object,
) -> Tuning:
    """Let the tuning go through, at most so many steps."""
    tuning = tuning_of(program, *allowed, **{"stop": True, **orders})
    story = tuning.run(planned)
    next(story)
    for _ in range(steps):
        try:
            story.send(program.tick())
        except StopIteration:
            return tuning
    tuning.decisions.left_over("the program ended before it could be tried")
    return tuning


def kept(tuning: Tuning) -> list[str]:
    return tuning.state.kept_ids
