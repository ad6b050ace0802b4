"""The time that a tuning may spend: what the user allowed, and what the run can earn back."""

from __future__ import annotations

import math
from collections.abc import Callable

from flatout_agent import wire
from flatout_agent.live.candidates import Candidate, Refusal

FREE_S = 60.0
"""The tuning may take the whole first minute of the run ..."""
SHARE = 0.03
"""... and later at most this share of the run."""
UNKNOWN_SHARE = 0.1
"""If the length of the run is unknown, a single boost may cost this share of the time trained so
far."""
COMPILE_S, COMPILE_LAYER_S, COMPILE_MOST_S = 12.0, 1.0, 60.0
"""Estimated seconds of a first compilation: the minimum, per additional layer, and the maximum."""
COMPILE_OPERATION_S = 0.01
"""For each operation of both passes: a loop over time is unrolled, and takes minutes."""
BLOCK_COMPILE_S = 10.0
"""The same for a model's repeated block, which is compiled only once."""
RECORD_S = 2.0
"""The same if calls are recorded instead of compiled."""
ROUGHLY = 2.0
"""A compilation may take so many times what is estimated, and cannot be broken off: it would take
the time of what is still open, and of the runs that confirm the result."""
AUTOTUNE = 3.0
"""These seconds are multiplied by this factor if kernels are chosen by timing them."""


class Budget:
    """Seconds spent and left, in one run."""

    def __init__(self, orders: wire.LiveOrders, now: Callable[[], float]) -> None:
        """now: the time in seconds since the epoch, on all ranks the same."""
        self.now, self._limit_s = now, orders.budget_s
        self.ends_at = orders.ends_at
        """When the time that the user allowed ends, or None if there is no limit."""
        self.began = math.nan
        self.steps = orders.steps
        """Steps of the whole run, or None if unknown."""
        self.throw_away = orders.stop
        """The run only serves the search, so trying a boost loses nothing."""
        self._started_at, self._whole_s = orders.started_at, orders.whole_s
        self.reserved_s = 0.0
        """Seconds that the host needs after the search to confirm the result ..."""
        self.found = False
        """... if there is one."""
        self.filling_s = 0.0
        """Additional seconds to refill, in its own process, the caches that were filled here."""
        self.layers = self.operations = 0
        """Convolution and matrix layers of the program's models, and the operations of a step."""
        self.lost_s = 0.0
        """Seconds that the tuning has cost the run so far."""
        self.lost_late_s = 0.0
        """The part of these seconds after the first minute."""

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
        """Seconds left for the search, or None if there is no limit."""
        if self.ends_at is None:
            return None
        left_s = max(0.0, self.ends_at - self.now())
        reserved_s = self.reserved_s + self.filling_s if self.found and self.reserved_s else 0.0
        if left_s < wire.ENOUGH_TO_CONFIRM * reserved_s:
            return left_s  # it is too late to confirm anything: the search has the rest
        return max(0.0, left_s - reserved_s)

    @property
    def over(self) -> bool:
        """The time that the user gave is used up."""
        return self.left_s == 0.0

    @property
    def ended(self) -> bool:
        """A throw-away run ends now: the user's time is up, and so is what was reserved."""
        return self.throw_away and self.ends_at is not None and self.now() >= self.ends_at

    def reserve(self, step_s: float) -> None:
        """Reserve the time of a confirmation, if there is one, in a program of such steps."""
        self.reserved_s = 0.0
        if self._started_at is not None:
            start_s = self.began - self._started_at
            self.reserved_s = wire.reserved_s(self._whole_s, start_s, step_s, self.steps)

    def lose(self, seconds: float) -> None:
        """Add to the cost of the tuning; a faster block gives some time back."""
        self.lost_s += seconds
        if self.elapsed_s > FREE_S:
            self.lost_late_s = max(0.0, self.lost_late_s + seconds)

    def compile_s(self, candidate: Candidate) -> float:
        """Seconds until the boost's code is compiled or recorded, or 0 if it compiles nothing."""
        if not candidate.boost.compiles:
            return 0.0
        if candidate.boost.records:
            return RECORD_S
        if candidate.params.get("scope") == "blocks":
            return BLOCK_COMPILE_S
        seconds = min(COMPILE_MOST_S, COMPILE_S + COMPILE_LAYER_S * self.layers)
        seconds = max(seconds, COMPILE_S + COMPILE_OPERATION_S * self.operations)
        return (
            AUTOTUNE * seconds if "autotune" in str(candidate.params.get("mode", "")) else seconds
        )

    def ready(self, cost_s: float, compile_s: float) -> bool:
        """Whether a try of this cost may begin now; if not, the program first trains on.

        `compile_s`: the part of the cost that is compilation.
        """
        if self.throw_away or (self.steps is not None and self.elapsed_s < FREE_S):
            return True
        if self.steps is None and compile_s:
            return cost_s <= UNKNOWN_SHARE * self.elapsed_s
        return self.elapsed_s < FREE_S or self.lost_late_s < SHARE * self.elapsed_s

    def refuses(
        self, cost_s: float, gain: float, compile_s: float, steps_taken: int, step_s: float
    ) -> Refusal | None:
        """Why a try of this cost is not worth it in this run, or None if it may be.

        `compile_s`: the part of the cost that is compilation. `gain`: the likely speed-up.
        `steps_taken`: steps so far. `step_s`: the current time of a step.
        """
        left_s, most_s = self.left_s, cost_s + (ROUGHLY - 1) * compile_s
        if left_s is not None and most_s > left_s:
            return Refusal(f"no time left: it may take {most_s:.0f} s more", "no_time")
        if self.steps is None or (self.throw_away and not compile_s):
            return None
        steps_left = max(0, self.steps - steps_taken)
        earned_s = steps_left * step_s * (1 - 1 / max(gain, 1.001))
        # A throw-away run takes only few steps of the real run.
        if cost_s <= earned_s:
            return None
        reason = (
            f"it would cost about {cost_s:.0f} s and earn {earned_s:.0f} s in {steps_left} steps"
        )
        return Refusal(reason, "not_worth_it")
