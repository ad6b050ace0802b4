"""A simulated GPU: true step times for sets of boosts, as an H200 showed them, in real decisions.

For tests/agent/live/test_simulated_gpu.py and benchmarks/search_simulation.py. The GPT of 86 M
parameters there took 142 ms a step as written on slow host cores, 61 ms in bfloat16, 59 ms with a
fused optimizer beside that, 66 ms with intercepted attention instead, 30 ms compiled.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Sequence

from flatout_agent import wire
from flatout_agent.live.budget import Budget
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.live.recipe import Tuning
from flatout_agent.live.state import Checked, Tick
from live_program import LiveProgram

START_S = 10.0
"""From a process's start to its first step."""
COMPILE_S = {"blocks": 10.0, "whole": 30.0, "graphs": 2.0}
"""What the first call takes under `compile`, by its scope, and under `cuda-graphs`."""
WRITTEN_MS = 142.0
BOOSTS = (
    "bf16-autocast", "bf16-residual", "compile", "cuda-graphs",
    "fused-optimizer", "gc-pause", "tf32",
)  # fmt: skip

FACTS = wire.JobFacts(
    torch="2.11.0",
    python="3.12",
    system="linux",
    device="cuda",
    device_name="NVIDIA H200",
    capability=(9, 0),
    bf16=True,
    cores=16,
    threads=16,
    models=(
        wire.ModelFacts(
            "GPT",
            86_000_000,
            "float32",
            "cuda",
            matmul=48,
            embeddings=2,
            input_shapes=("16x512",),
            blocks=12,
        ),
    ),
    optimizers=(wire.OptimizerFacts("AdamW", True, 86_000_000, 148, "float32", None, None),),
    triton=True,
    compiler=True,
    step_s=WRITTEN_MS / 1000,
    wait_share=0.0,
)


def true_ms(ids: frozenset[str]) -> float:
    """What a step really takes under these boosts."""
    if "bf16-autocast" not in ids:
        ms = WRITTEN_MS * (0.9 if "tf32" in ids else 1.0)
        ms *= 0.85 if "compile" in ids else 1.0
    elif "compile" in ids:
        ms = 30.0
    elif "cuda-graphs" in ids:
        ms = 36.0
    else:
        ms = 61.0
    if "fused-optimizer" in ids:
        ms -= 2.0 if "compile" not in ids else 0.5
    return ms * (1.01 if "bf16-residual" in ids else 1.0)


def best_ms() -> float:
    """The best that any allowed set gives."""
    sets = itertools.chain.from_iterable(
        itertools.combinations(BOOSTS, count) for count in range(len(BOOSTS) + 1)
    )
    possible = (ids for ids in map(frozenset, sets) if not {"compile", "cuda-graphs"} <= ids)
    return min(map(true_ms, possible))


class Gpu(LiveProgram):
    """The simulated program. Its clock starts with the process."""

    def __init__(self, noise: float, seed: int, useless: bool = False) -> None:
        """noise: standard deviation of a step's log. useless: no boost makes any difference."""
        super().__init__(clock=START_S)
        self.noise, self.useless = noise, useless
        self._compiled: set[str] = set()
        self._random = random.Random(seed)

    def tick(self) -> Tick:
        ms = WRITTEN_MS if self.useless else true_ms(self.ids)
        return self.stepped(ms / 1000 * self._random.lognormvariate(0, self.noise))

    def look_inside(self) -> Generator[None, Tick, None]:
        return
        yield

    def facts(self) -> wire.JobFacts:
        return FACTS

    def check(self, group: Sequence[Candidate]) -> Generator[None, Tick, Checked]:
        yield
        yield
        for candidate in group:
            if candidate.boost.compiles and str(candidate.order) not in self._compiled:
                self._compiled.add(str(candidate.order))
                kind = "graphs" if candidate.boost.records else candidate.params.get("scope")
                self.clock += COMPILE_S[kind or "whole"]
        return Checked(list(group), {}, GuardVerdict(True, "the same", 1e-6))


def tuned(noise: float, seed: int, budget_s: float = 60.0, useless: bool = False) -> Gpu:
    """The program after a tuning for which the user gave so many seconds, start included."""
    gpu = Gpu(noise, seed, useless)
    orders = wire.LiveOrders(allowed=BOOSTS, ends_at=budget_s, stop=True, seed=seed)
    tuning = Tuning(gpu, orders, Budget(orders, gpu.now))
    story = tuning.run(())
    next(story)
    try:
        while True:
            story.send(gpu.tick())
    except StopIteration:
        gpu.switch(tuning.state.on)
    return gpu
