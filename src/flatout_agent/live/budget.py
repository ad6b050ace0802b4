"""What a live tuning may spend: never more than the rest of the run can earn back."""

from __future__ import annotations

import time

from flatout_agent.live.candidates import Refusal

FREE_S = 60.0
"""The run's first minute may go into the tuning whole ..."""
SHARE = 0.03
"""... later so much of the run at most."""
UNKNOWN_SHARE = 0.1
"""Where nobody knows how long the program trains, a single boost may cost this share of the time
that it has trained already."""


class Budget:
    """Seconds spent and left, in one run."""

    def __init__(self, limit_s: float | None, steps: int | None, throw_away: bool) -> None:
        """throw_away: the run is there for the answer alone, so that trying loses nothing."""
        self.began = time.perf_counter()
        self.limit_s = limit_s
        self.steps = steps
        self.throw_away = throw_away
        self.lost_s = 0.0
        """What the tuning has cost the run so far."""
        self.lost_late_s = 0.0
        """Of that, beyond the first minute."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first step."""
        return time.perf_counter() - self.began

    @property
    def left_s(self) -> float | None:
        """Seconds left of the time that the user gave; None: there is no such limit."""
        return None if self.limit_s is None else max(0.0, self.limit_s - self.elapsed_s)

    @property
    def over(self) -> bool:
        """The time that the user gave is used up."""
        return self.limit_s is not None and self.elapsed_s > self.limit_s

    def lose(self, seconds: float) -> None:
        """Account for what the tuning has cost the run; a block that was faster gives some back."""
        self.lost_s += seconds
        if self.elapsed_s > FREE_S:
            self.lost_late_s = max(0.0, self.lost_late_s + seconds)

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
        if self.limit_s is not None and self.elapsed_s + cost_s > self.limit_s:
            reason = f"no time left: it would take about {cost_s:.0f} s more"
            return Refusal(reason, "no_time")
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
