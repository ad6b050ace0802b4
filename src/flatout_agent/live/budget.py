"""What a tuning may spend: the time that the user gave, and what the run can earn back."""

from __future__ import annotations

import math
from collections.abc import Callable

from flatout_agent import wire
from flatout_agent.live.candidates import Candidate, Refusal

FREE_S = 60.0
"""The run's first minute may go into the tuning whole ..."""
SHARE = 0.03
"""... later so much of the run at most."""
UNKNOWN_SHARE = 0.1
"""Where nobody knows how long the program trains, a single boost may cost this share of the time
that it has trained already."""
COMPILE_S, COMPILE_LAYER_S, COMPILE_MOST_S = 12.0, 1.0, 60.0
"""Estimated seconds of a first compilation: at least, for each further layer, and at most."""
BLOCK_COMPILE_S = 10.0
"""The same of a model's repeated block, which is compiled once for all."""
RECORD_S = 2.0
"""The same where calls are recorded, not compiled."""
AUTOTUNE = 3.0
"""Factor on this where kernels are chosen by timing them."""


class Budget:
    """Seconds spent and left, in one run."""

    def __init__(self, orders: wire.LiveOrders, now: Callable[[], float]) -> None:
        """now: the time in seconds since the epoch, on all ranks the same."""
        self.now, self._limit_s = now, orders.budget_s
        self.ends_at = orders.ends_at
        """When the time that the user gave is over; None: never."""
        self.began = math.nan
        self.steps = orders.steps
        """Of the whole run."""
        self.throw_away = orders.stop
        """The run is there for the answer alone, so that trying loses nothing."""
        self.reserved_s = 0.0
        """What the host needs after the search, to confirm what was found ..."""
        self.found = False
        """... once something was."""
        self.filling_s = 0.0
        """What it needs more to fill the caches that were filled here, in a process of its own."""
        self.layers = 0
        """Convolution and matrix layers of the program's models."""
        self.lost_s = 0.0
        """What the tuning has cost the run so far."""
        self.lost_late_s = 0.0
        """Of that, beyond the first minute."""

    def begin(self) -> None:
        """The first step has been taken."""
        self.began = self.now()
        if self._limit_s is not None:
            self.ends_at = min(self.began + self._limit_s, self.ends_at or math.inf)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first step."""
        return self.now() - self.began

    @property
    def left_s(self) -> float | None:
        """Seconds left for the search; None: there is no limit."""
        if self.ends_at is None:
            return None
        reserved_s = self.reserved_s + self.filling_s if self.found and self.reserved_s else 0.0
        return max(0.0, self.ends_at - reserved_s - self.now())

    @property
    def over(self) -> bool:
        """The time that the user gave is used up."""
        return self.left_s == 0.0

    def lose(self, seconds: float) -> None:
        """Account for what the tuning has cost the run; a block that was faster gives some back."""
        self.lost_s += seconds
        if self.elapsed_s > FREE_S:
            self.lost_late_s = max(0.0, self.lost_late_s + seconds)

    def compile_s(self, candidate: Candidate) -> float:
        """Seconds until compiled or recorded code is there; 0: it compiles nothing."""
        if not candidate.boost.compiles:
            return 0.0
        if candidate.boost.records:
            return RECORD_S
        if candidate.params.get("scope") == "blocks":
            return BLOCK_COMPILE_S
        seconds = min(COMPILE_MOST_S, COMPILE_S + COMPILE_LAYER_S * self.layers)
        return (
            AUTOTUNE * seconds if "autotune" in str(candidate.params.get("mode", "")) else seconds
        )

    def ready(self, cost_s: float, compile_s: float) -> bool:
        """Whether a try that costs so much may begin now; else the program trains on first.

        `compile_s`: of that, for a compilation.
        """
        if self.throw_away or (self.steps is not None and self.elapsed_s < FREE_S):
            return True
        if self.steps is None and compile_s:
            return cost_s <= UNKNOWN_SHARE * self.elapsed_s
        return self.elapsed_s < FREE_S or self.lost_late_s < SHARE * self.elapsed_s

    def refuses(
        self, cost_s: float, gain: float, compile_s: float, steps_taken: int, step_s: float
    ) -> Refusal | None:
        """Why a try that costs so much is not worth it in this run; None: it may be.

        `compile_s`: of that, for a compilation. `gain`: the likely speed-up. `steps_taken`: so far.
        `step_s`: what a step takes now.
        """
        left_s = self.left_s
        if left_s is not None and cost_s > left_s:
            return Refusal(f"no time left: it would take about {cost_s:.0f} s more", "no_time")
        if self.steps is None or (self.throw_away and not compile_s):
            return None
        steps_left = max(0, self.steps - steps_taken)
        earned_s = steps_left * step_s * (1 - 1 / max(gain, 1.001))
        # A throw-away run has taken few steps of the run that is meant.
        if cost_s <= earned_s:
            return None
        reason = (
            f"it would cost about {cost_s:.0f} s and earn {earned_s:.0f} s in {steps_left} steps"
        )
        return Refusal(reason, "not_worth_it")
