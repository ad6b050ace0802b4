"""The loop over trials: keep what is faster beyond the noise and still learns the same."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flatout.knowledge import boosts as known
from flatout.measuring import trial as measuring
from flatout.measuring import trial_profile
from flatout.measuring.outcome import Outcome
from flatout.nouns.observer import Observer
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.profile import Profile
from flatout.nouns.trial import Measured, Trial, Verdict
from flatout.tuning import guard, unmeasurable
from flatout.tuning.candidates import Candidate, Choice, candidates, highest_risk, skip
from flatout_agent import wire

Predict = Callable[[Profile], Mapping[str, float]]

FULL_TRIALS = 2
LEAST_GAIN = 0.01
"""A boost must be faster by at least this share, however quiet the machine."""
LIMIT_FACTOR = 4.0
LIMIT_LEAST_S = 120.0
COMPILE_LIMIT_S = 600.0
"""A trial may take so many times the untouched one, at least, and more where it compiles; but none
goes on beyond the budget, the first least of all: nobody waits half an hour for a hang."""
DUEL_LIMIT_FACTOR = 10.0
"""The confirmation may take so many times an untouched trial, whatever is left of the budget."""
OTHER_SEED = 7919
"""Added to the seed for the random numbers of the second untouched run."""
PROFILE_ROOM = 6.0
"""A profile is worth its time where so many trials fit beside it."""
FEWEST_TO_ORDER = 3
"""Boosts that apply; of fewer all are tried anyway."""
CONFIRM_SHARE = 2.5
"""Time held back for the confirmation, in untouched trials."""


@dataclass
class Search:
    """State of one search. `kept` is the plan so far, `incumbent` its figures."""

    bench: measuring.Bench
    choice: Choice
    observer: Observer
    deadline: float
    """On the monotonic clock; no trial begins that is not expected to end before it."""
    predict: Predict | None = None
    """From the program's profile to what its findings let expect of boosts; None: no profile."""
    predicted: Mapping[str, float] | None = None
    """Boost -> predicted speed-up; None: there is no profile."""
    trials: list[Trial] = field(default_factory=list)
    kept: list[PlannedBoost] = field(default_factory=list)
    redirected: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    untouched: Outcome | None = None
    again: Outcome | None = None
    incumbent: Measured | None = None
    incumbent_trial: Trial | None = None
    reference: guard.Reference | None = None
    interrupted: bool = False
    _count: int = 0

    # The untouched program ----------------------------------------------------------------------

    def baseline(self) -> None:
        """Run the untouched program twice. Raises UserError when it cannot be measured."""
        self.observer.phase("measuring the program as written")
        self.untouched = first = self._run((), None, {}, self._left())
        if first.measured is None or first.rank is None or first.rank.facts is None:
            raise unmeasurable.why(first)
        self._tell(_untouched_row(first, "as written", None))
        self.incumbent = first.measured
        limit_s = self._limit(compiles=False)
        self.again = second = self._run(
            (), None, {}, limit_s, noise_seed=self.bench.seed + OTHER_SEED
        )
        own = second.rank.guard if second.rank is not None else None
        measured = first.rank.guard
        self.reference = guard.Reference(
            noise=measured.noise if measured is not None else None,
            own=max(own.error) if own is not None and own.error else None,
            losses=first.measured.losses,
            guard_steps=self.bench.guard_steps,
        )
        if second.measured is not None:
            gain = first.measured.step_ms / second.measured.step_ms
            self._tell(_untouched_row(second, "as written, again: its own noise", gain))

    @property
    def untouched_figures(self) -> Measured:
        """Of the untouched program; only after `baseline`."""
        assert self.untouched is not None
        assert self.untouched.measured is not None
        return self.untouched.measured

    @property
    def noise(self) -> float:
        """Relative difference between the two untouched runs; 0 where there is only one."""
        one = self.untouched.measured if self.untouched is not None else None
        two = self.again.measured if self.again is not None else None
        if one is None or two is None:
            return 0.0
        return abs(one.step_ms - two.step_ms) / min(one.step_ms, two.step_ms)

    @property
    def deterministic(self) -> bool | None:
        """Whether the two untouched runs gave the same losses, to the last bit."""
        one = self.untouched.measured if self.untouched is not None else None
        two = self.again.measured if self.again is not None else None
        if one is None or two is None:
            return None
        skip_steps = self.bench.guard_steps
        pairs = list(zip(one.losses[skip_steps:], two.losses[skip_steps:], strict=False))
        return bool(pairs) and all(a == b for a, b in pairs)

    @property
    def facts(self) -> wire.JobFacts:
        """Of the untouched program; only after `baseline`."""
        assert self.untouched is not None
        assert self.untouched.rank is not None
        assert self.untouched.rank.facts is not None
        return self.untouched.rank.facts

    def profile(self) -> None:
        """Ask the program's profile which boosts are worth it; without one, their own rules hold.

        Where there is hardly an order to choose, the budget has no room for it beside a few trials,
        or it fails, there is none.
        """
        one = self._expected_s() or 0.0
        if self.predict is None or self._left() < (PROFILE_ROOM + CONFIRM_SHARE) * one:
            return
        if len(candidates(self.facts, self.choice)[0]) < FEWEST_TO_ORDER:
            return
        self._count += 1
        found = trial_profile.profile(
            self.bench, f"profile-{self._count}", self._limit(compiles=False), self.observer
        )
        if found is not None:
            self.predicted = self.predict(found)

    # The search ---------------------------------------------------------------------------------

    def search(self) -> None:
        """Try every candidate once, and those dropped that a later one may have made worth it."""
        found, skipped = candidates(self.facts, self.choice, self.predicted)
        self.observer.phase(f"trying {len(found)} boosts")
        dropped: list[tuple[Candidate, int]] = []
        for candidate in found:
            if not self._try(candidate):
                dropped.append((candidate, len(self.kept)))  # noqa: PERF401 - it runs trials
        for candidate, kept_before in dropped:
            later = {boost.id for boost in self.kept[kept_before:]}
            if later & set(candidate.boost.retry_after) and self._was_slower(candidate.boost.id):
                self._try(dataclasses.replace(candidate, retried=True))
        for row in skipped:
            self._tell(row)

    def _was_slower(self, boost: str) -> bool:
        rows = [row for row in self.trials if row.tried == boost]
        return any(row.verdict is Verdict.SLOWER for row in rows)

    def _try(self, candidate: Candidate) -> bool:
        """Whether the candidate was kept."""
        boost = candidate.boost
        clash = next((item.id for item in self.kept if item.id in boost.conflicts), None)
        if clash is not None:
            self._tell(skip(self.kept, boost.id, f"cannot be on together with {clash}"))
            return False
        if time.monotonic() + self._expected(boost) > self.deadline:
            self._tell(skip(self.kept, boost.id, "no time left in the budget"))
            return False
        tried = [
            (self._trial(candidate, variant), variant) for variant in self._finalists(candidate)
        ]
        faster = [item for item in tried if item[0].verdict is Verdict.KEPT]
        best = max(faster, key=lambda item: _speed(item[0]), default=None)
        for row, _ in tried:
            if best is not None and row.verdict is Verdict.KEPT and row is not best[0]:
                reason = f"slower than with {best[1].params}"
                self._tell(dataclasses.replace(row, verdict=Verdict.SLOWER, reason=reason))
            else:
                self._tell(row)
        if best is None:
            return False
        row, variant = best
        self.incumbent, self.incumbent_trial = row.measured, row
        self.kept.append(dataclasses.replace(variant, gain=row.gain))
        return True

    def _finalists(self, candidate: Candidate) -> list[PlannedBoost]:
        """Parameters by successive halving: short trials of all, longer ones of the better half.

        The last two get full trials.
        """
        left = list(candidate.variants)
        steps = self.bench.min_steps
        while len(left) > FULL_TRIALS:
            timed = [(self._short(candidate, variant, steps), variant) for variant in left]
            timed.sort(key=lambda item: item[0])
            left = [variant for _, variant in timed[: max(FULL_TRIALS, len(left) // 2)]]
            steps *= 2
        return left

    def _short(self, candidate: Candidate, variant: PlannedBoost, steps: int) -> float:
        """Step time in ms of one variant in a short trial; infinite where there is none."""
        if time.monotonic() + self._expected(candidate.boost) > self.deadline:
            return math.inf
        outcome = self._run(
            (*self.kept, variant),
            variant.id,
            variant.params,
            self._limit(candidate.boost.compiles),
            window_s=self.bench.window_s / 3,
            min_steps=max(4, steps // 2),
        )
        figures = outcome.measured
        took = figures is not None and not self._idle(outcome, variant.id)
        return figures.step_ms if figures is not None and took else math.inf

    def _trial(self, candidate: Candidate, variant: PlannedBoost) -> Trial:
        """One full trial of the plan so far with one more boost, and its verdict."""
        boosts = (*self.kept, variant)
        limit = self._limit(candidate.boost.compiles)
        outcome = self._run(boosts, variant.id, variant.params, limit)
        row = Trial(
            boosts=tuple(item.id for item in boosts),
            tried=variant.id,
            params=variant.params,
            retried=candidate.retried,
            predicted=None if self.predicted is None else self.predicted.get(variant.id, 1.0),
            engaged={key: note.reason for key, note in outcome.notes.items() if note.reason},
            measured=outcome.measured,
            log=outcome.log,
            wall_s=outcome.wall_s,
        )
        idle = self._idle(outcome, variant.id)
        if outcome.measured is None:
            reason = outcome.error or ""
            return dataclasses.replace(row, verdict=Verdict.FAILED, reason=reason)
        if idle is not None:
            return dataclasses.replace(row, verdict=Verdict.SKIPPED, reason=idle)
        return self._judged(row, outcome, boosts, candidate)

    def _judged(
        self,
        row: Trial,
        outcome: Outcome,
        boosts: tuple[PlannedBoost, ...],
        candidate: Candidate,
    ) -> Trial:
        assert self.incumbent is not None
        assert outcome.measured is not None
        assert self.reference is not None
        gain = gain_of(candidate.boost.id, self.incumbent, outcome.measured)
        measured = outcome.rank.guard if outcome.rank is not None else None
        verdict = guard.judge(
            measured, outcome.measured.losses, self.reference, highest_risk(boosts)
        )
        needed = 1 + max(LEAST_GAIN, self._uncertainty(outcome.measured))
        if not verdict.passed:
            kind, reason = Verdict.DIFFERENT, verdict.reason
        elif gain >= needed:
            kind, reason = Verdict.KEPT, verdict.reason
        else:
            kind = Verdict.SLOWER
            reason = "slower" if gain < 1 else f"not faster beyond the noise ({needed - 1:.1%})"
        return dataclasses.replace(row, verdict=kind, reason=reason, gain=gain, guard=verdict)

    def _uncertainty(self, figures: Measured) -> float:
        """Standard error of the ratio of the two step times, or the program's own noise."""
        assert self.incumbent is not None
        errors = [_standard_error(item.steps_ms) for item in (self.incumbent, figures)]
        return max(2 * math.hypot(*errors), min(self.noise, 0.05))

    @staticmethod
    def _idle(outcome: Outcome, boost: str) -> str | None:
        """Why the boost did not take hold; None: it did."""
        note = outcome.notes.get(boost)
        if note is None:
            return "it was never applied"
        words = {"declined": note.reason, "failed": f"failed: {note.reason}",
                 "idle": f"did not engage: {note.reason}"}  # fmt: skip
        return words.get(note.state)

    # Running ------------------------------------------------------------------------------------

    def _run(
        self,
        boosts: tuple[PlannedBoost, ...],
        tried: str | None,
        params: dict[str, object],
        limit_s: float,
        **changes: object,
    ) -> Outcome:
        self._count += 1
        name = f"{tried or 'untouched'}-{self._count}"
        facts = self.facts if self.incumbent is not None else None
        self.observer.started(tried, params, self._count, self._expected_s())
        outcome = measuring.run(
            self.bench,
            name,
            boosts,
            facts,
            limit_s,
            lambda step: self.observer.step(step.index, step.phase, step.wall_s),
            **changes,
        )
        self.redirected += [path for path in outcome.redirected if path not in self.redirected]
        self.faults += [fault for fault in outcome.faults if fault not in self.faults]
        return outcome

    def _tell(self, row: Trial) -> None:
        self.trials.append(row)
        self.observer.finished(row)

    def _expected_s(self) -> float | None:
        return self.untouched.wall_s if self.untouched is not None else None

    def _expected(self, boost: known.KnownBoost) -> float:
        """Seconds that a trial of this boost and the confirmation after it will take."""
        one = self._expected_s() or 0.0
        return one * (2.0 if boost.compiles else 1.0) + CONFIRM_SHARE * one

    def _limit(self, compiles: bool) -> float:
        one = self._expected_s() or 0.0
        limit_s = max(LIMIT_LEAST_S, LIMIT_FACTOR * one) + (COMPILE_LIMIT_S if compiles else 0.0)
        return min(limit_s, self._left())

    def _left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    @property
    def duel_limit_s(self) -> float:
        """How long the confirmation may take: it may overrun the budget, a hang may not."""
        compiles = any(known.get(boost.id).compiles for boost in self.kept)
        least_s = LIMIT_LEAST_S + (COMPILE_LIMIT_S if compiles else 0.0)
        return max(self._left(), least_s, DUEL_LIMIT_FACTOR * (self._expected_s() or 0.0))


def gain_of(boost: str, before: Measured, after: Measured) -> float:
    """How many times as fast: by samples where the batch changes, else by step.

    Evaluation counts for the boost that is about evaluation.
    """
    if known.get(boost).risk == "semantics" and before.samples_per_s and after.samples_per_s:
        return after.samples_per_s / before.samples_per_s
    if boost == "eval-without-grad" and before.eval_ms and after.eval_ms:
        return before.eval_ms / after.eval_ms
    return before.step_ms / after.step_ms


def _speed(row: Trial) -> float:
    assert row.measured is not None
    return row.measured.samples_per_s or 1000 / row.measured.step_ms


def _standard_error(times: tuple[float, ...]) -> float:
    if len(times) < 2:
        return 0.0
    return statistics.stdev(times) / math.sqrt(len(times)) / statistics.fmean(times)


def _untouched_row(outcome: Outcome, reason: str, gain: float | None) -> Trial:
    return Trial(
        boosts=(),
        tried=None,
        verdict=Verdict.KEPT,
        reason=reason,
        gain=gain,
        measured=outcome.measured,
        log=outcome.log,
        wall_s=outcome.wall_s,
    )
