"""Repeats recorded calls as written and under boosts, and says which of these are wrong.

Boosts are compared together. If they fail, the same call is repeated without the likeliest ones
until the wrong ones are known.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Moment, Risk
from flatout_agent.job import Job
from flatout_agent.live import calls as replays
from flatout_agent.live import guard, headroom
from flatout_agent.live.calls import RecordedCall, RepeatedCall, again
from flatout_agent.live.candidates import Candidate, highest_risk
from flatout_agent.live.failed_calls import Unsound, first_line
from flatout_agent.live.guard import NOT_COMPARED, GuardVerdict, NoiseFloor
from flatout_agent.live.noise_floors import NoiseFloorPurpose, NoiseFloors, purpose_of
from flatout_agent.live.without_dropout import can_run_without_dropout

OURS = Path(__file__).parents[1]


class Judge:
    """Gives verdicts on calls for one question at a time, which `ask` puts."""

    def __init__(
        self,
        job: Job,
        booster: Booster,
        unsound: Unsound,
        not_comparable: Callable[[torch.nn.Module, str], None],
        no_room: Callable[[], None],
    ) -> None:
        """unsound: called with the boosts that must go, and why. not_comparable: called with a
        model whose call cannot be compared, and why. no_room: called if memory does not suffice for
        what the Guard keeps.
        """
        self.job, self.booster, self._unsound = job, booster, unsound
        self._not_comparable, self._no_room = not_comparable, no_room
        self.noise_floors = NoiseFloors()
        self.ask((), False)

    def ask(self, group: Sequence[Candidate], on: bool) -> None:
        """The next calls are to be compared for these. on: the program makes them under these."""
        self.group, self._on = list(group), on
        """The boosts in question that have not been refused, and whether they are on in the calls
        that are given."""
        self.refused: dict[str, GuardVerdict] = {}
        self.idle: dict[str, str] = {}
        """Those that did not take hold, and why."""
        self.wrong: tuple[list[str], str] = [], ""
        """Those that must not stay on, and why."""
        self.noise_floors.reused = False

    def knows_noise(self) -> bool:
        """Whether the noise floors of all models that answer the question were measured before."""
        models, purpose = list(self.job.models), self._purpose(self.group)
        return self.noise_floors.cover(models, purpose, self.job.steps)

    def verdict(self, calls: list[RecordedCall]) -> GuardVerdict | None:
        """Compare the program with and without the boosts in question, over all these calls.

        None if they cannot be compared.
        """
        verdicts: list[GuardVerdict] = []
        for recorded in calls:
            rounding = [c for c in self.group if c.boost.risk is not Risk.EXACT]
            if recorded.third and rounding:
                reason = f"{NOT_COMPARED}the loss may use third derivatives"
                if self._on:  # they are on, and nothing can be said of them
                    self.wrong = [candidate.id for candidate in rounding], reason
                    return GuardVerdict(False, reason)
                self._refuse(rounding, GuardVerdict(False, reason))
            try:
                verdict = self._judge_call(recorded)
            except headroom.OUT_OF_MEMORY:
                self._no_room()
                return None
            except Exception as error:
                verdict, why = None, first_line(error)
                if _is_ours(error):
                    self.booster.recorder.fault("guard", error)
            else:
                why = "the same call of the model gave two different results"
            if verdict is None:
                self._not_comparable(recorded.model, why)
                return None
            verdicts.append(verdict)
            if not verdict.passed:
                break
        return guard.worst(verdicts)

    def _refuse(self, group: Sequence[Candidate], verdict: GuardVerdict) -> None:
        self.refused.update({candidate.id: verdict for candidate in group})
        self.group = [candidate for candidate in self.group if candidate.id not in self.refused]

    def _judge_call(self, recorded: RecordedCall) -> GuardVerdict | None:
        """None if the repeated call does not give the same."""
        as_run = guard.reference(recorded)
        if as_run is None:
            return None
        if not self._on:
            return self._narrow(recorded, as_run)
        if recorded.drew and self._purpose(self.group).redraws:
            # The loss's gradient fits the masks that were drawn when the call ran, and no others:
            # a call with these differs more from one as written than any other two calls do.
            as_run = again(recorded, guard.OTHER_SEED)
        self.switch_off(self.group)
        try:
            written = again(recorded)
            return self._compared(recorded, self.group, written, as_run)
        finally:
            refused = self.switch_on(self.group)
            if refused:
                reason = next(iter(refused.values())).reason
                ids = [candidate.id for candidate in self.group]
                self._unsound(ids, f"it could not be switched on again: {reason}")

    def _narrow(self, recorded: RecordedCall, written: RepeatedCall) -> GuardVerdict:
        """Refuse the boosts that this call shows to be wrong; returns the verdict on the rest.

        The exact boosts come first, by the rule for exact ones; then boosts that round, beside
        these. Boosts that draw other random numbers come last, beside all others, since their rule
        sees less.
        """
        sound = self._that_apply([c for c in self.group if beside_calls(c)])
        verdict = GuardVerdict(True, "nothing that is on acts on the model's calls", 0.0)
        self._refuse_cuts(recorded, written)
        called = [candidate for candidate in self.group if not beside_calls(candidate)]
        redraw = [candidate for candidate in called if candidate.boost.redraws]
        others = [candidate for candidate in called if not candidate.boost.redraws]
        exact = [candidate for candidate in others if candidate.boost.risk is Risk.EXACT]
        rounding = [candidate for candidate in others if candidate.boost.risk is not Risk.EXACT]
        under: list[Candidate] = []
        for tier in (exact, rounding, redraw):
            if tier is rounding and rounding:  # beside these, by their rule, more may pass
                for candidate in exact:
                    known = self.refused.get(candidate.id)
                    if known is not None and not known.failed and known.error is not None:
                        rounding.append(candidate)
            if tier is redraw and redraw and highest_risk(sound) != "exact":
                boosted = self._boosted(recorded, sound)
                if isinstance(boosted, RepeatedCall):
                    written, under = boosted, list(sound)
            passed, told = self._passing(recorded, sound, tier, written, under)
            sound += passed
            if told is not None and (told.error or 0.0) >= (verdict.error or 0.0):
                verdict = told
        self.group = sound
        for candidate in sound:
            self.refused.pop(candidate.id, None)
        return verdict

    def _passing(
        self,
        recorded: RecordedCall,
        base: list[Candidate],
        group: list[Candidate],
        written: RepeatedCall,
        under: list[Candidate],
    ) -> tuple[list[Candidate], GuardVerdict | None]:
        """(the boosts of the group that pass beside the base, the verdict on them).

        under: the boosts under which `written` was made.
        """
        group = self._that_apply(group)
        if highest_risk([*base, *group]) == "exact":  # their rule has refused these already
            group = [candidate for candidate in group if candidate.id not in self.refused]
        if not group:
            return [], None
        verdict = self._compared(recorded, [*base, *group], written, None, group, under)
        if verdict.passed:
            return group, verdict
        if len(group) == 1:
            self._refuse(group, verdict)
            return [], None
        # One wrong boost is the usual case, and the likeliest one is known: without it the others
        # pass at once.
        suspect = max(group, key=lambda c: (c.id in self.refused, c.id not in self.idle, c.promise))
        others = [candidate for candidate in group if candidate is not suspect]
        passed, told = self._passing(recorded, base, others, written, under)
        if len(passed) == len(others):
            if suspect.id not in self.refused:
                self._refuse([suspect], verdict)
            return passed, told
        more, of_suspect = self._passing(recorded, [*base, *passed], [suspect], written, under)
        return [*passed, *more], of_suspect or told

    def _that_apply(self, group: list[Candidate]) -> list[Candidate]:
        """The boosts that can be switched on here; the others are refused with their
        own reasons.
        """
        refused = self.switch_on(group)
        self.switch_off([candidate for candidate in group if candidate.id not in refused])
        for candidate in group:
            if candidate.id in refused:
                self._refuse([candidate], refused[candidate.id])
        return [candidate for candidate in group if candidate.id not in refused]

    def find_wrong(self, calls: list[RecordedCall], verdict: GuardVerdict) -> None:
        """The kept boosts are no longer sound together: check each alone to find the wrong ones."""
        if verdict.error is None:
            return
        kept = list(self.group)
        wrong: list[str] = []
        self.switch_off(kept)
        try:
            with suppress(headroom.OUT_OF_MEMORY):
                wrong = [
                    item.id
                    for item in kept
                    if not all(
                        self._compared(recorded, [item], again(recorded), None).passed
                        for recorded in calls
                    )
                ]
        finally:
            self.switch_on(kept)
            self.wrong = wrong or [candidate.id for candidate in kept], verdict.summary

    # Comparing ----------------------------------------------------------------------------------

    def _compared(
        self,
        recorded: RecordedCall,
        candidates: Sequence[Candidate],
        written: RepeatedCall,
        boosted: RepeatedCall | GuardVerdict | None,
        judged: Sequence[Candidate] | None = None,
        under: Sequence[Candidate] = (),
    ) -> GuardVerdict:
        """Compare the call as written with the one under these boosts.

        boosted: the latter, or None to make it here. judged: the boosts whose rules apply, or None
        for all. under: the boosts that `written` was made under.
        """
        judged = candidates if judged is None else judged
        purpose, risk = self._purpose(judged), highest_risk(judged)
        if boosted is None:
            boosted = self._boosted(recorded, candidates)
            if isinstance(boosted, RepeatedCall) and not purpose.redraws:
                sure = guard.surely(written, boosted, risk)
                if sure is not None:
                    return sure
        if isinstance(boosted, GuardVerdict):
            return boosted
        compared = _where_used(recorded, candidates, written, boosted)
        given = recorded, written, compared, risk, purpose, purpose.redraws
        exact = risk == "exact" and not any(c.boost.cuts_outputs for c in judged)
        # Without dropout it would be the same comparison, unless the call has some.
        still = recorded.drew and not exact
        still = still and (purpose.redraws or recorded.has_dropout is not False)
        verdict = self._by_noise_floor(*given, further=not still)
        if verdict.common is not None and not recorded.drew:
            verdict = self._over_batches(recorded, candidates, under, compared, verdict)
        if not still or verdict.passed is not purpose.redraws:
            return verdict
        told = self._without_dropout(recorded, written, candidates, under, purpose)
        if told is None:
            return self._by_noise_floor(*given)
        if purpose.redraws or not told.passed:
            return told
        return told if guard.as_redrawn(recorded, written, verdict) else verdict

    def _over_batches(
        self,
        recorded: RecordedCall,
        candidates: Sequence[Candidate],
        under: Sequence[Candidate],
        compared: tuple[RepeatedCall, RepeatedCall],
        verdict: GuardVerdict,
    ) -> GuardVerdict:
        """The verdict on an error that may average out, after a look at another batch.

        compared: the call under the boosts `under` and under `candidates`; without dropout, if it
        drew random numbers.
        """
        other = recorded.second_batch
        if other is None:
            return verdict
        written = self._boosted(other, under, still=recorded.drew)
        boosted = self._boosted(other, candidates, still=recorded.drew)
        if isinstance(written, GuardVerdict) or isinstance(boosted, GuardVerdict):
            return verdict  # inputs of another shape may need what is no longer there
        second = _where_used(other, candidates, written, boosted)
        return guard.averages_out(verdict, compared, second)

    def _by_noise_floor(
        self,
        recorded: RecordedCall,
        written: RepeatedCall,
        compared: tuple[RepeatedCall, RepeatedCall],
        risk: str,
        purpose: NoiseFloorPurpose,
        redraws: bool,
        further: bool = True,
    ) -> GuardVerdict:
        """See `guard.verdict`; what is measured for it is kept."""
        noise_floor = self._noise_floor(recorded, written, purpose, compared)
        verdict = guard.verdict(
            recorded, written, compared, noise_floor, risk, redraws, further=further
        )
        if verdict.noise_floor is not None and verdict.noise_floor is not noise_floor:
            self.noise_floors.add(recorded.model, purpose, self.job.steps, verdict.noise_floor)
        return verdict

    def _noise_floor(
        self,
        recorded: RecordedCall,
        written: RepeatedCall,
        purpose: NoiseFloorPurpose,
        compared: tuple[RepeatedCall, RepeatedCall],
    ) -> NoiseFloor:
        """The noise floor for this purpose, measured now if it is not known.

        compared: the call as written and under a boost, which are judged by it. What rounding does,
        the dearest part, is left out if the boost fails anyway.
        """
        model, steps = recorded.model, self.job.steps
        noise_floor = self.noise_floors.get(model, purpose, steps)
        if noise_floor is not None:
            return noise_floor
        if purpose.rounds and not purpose.redraws:
            unrounded = purpose._replace(rounds=False)
            noise_floor = self._noise_floor(recorded, written, unrounded, compared)
            if guard.too_far(*compared, noise_floor):
                return noise_floor
        known = self.noise_floors.known(model, purpose, steps)
        noise_floor = guard.noise_floor(recorded, written, *purpose, known=known)
        self.noise_floors.add(model, purpose, steps, noise_floor)
        return noise_floor

    def _refuse_cuts(self, recorded: RecordedCall, written: RepeatedCall) -> None:
        """Refuse the boosts that leave out what the model's result depends on.

        Each is compared alone and without dropout: what other masks change would hide it.
        """
        for candidate in [c for c in self.group if c.boost.cuts_outputs]:
            purpose = self._purpose([candidate])._replace(redraws=False)
            verdict = self._without_dropout(recorded, written, [candidate], (), purpose)
            if verdict is None:
                reason = f"{NOT_COMPARED}the model cannot be called without dropout"
                verdict = GuardVerdict(False, reason)
            if not verdict.passed:
                self._refuse([candidate], verdict)

    def _without_dropout(
        self,
        recorded: RecordedCall,
        as_written: RepeatedCall,
        candidates: Sequence[Candidate],
        under: Sequence[Candidate],
        purpose: NoiseFloorPurpose,
    ) -> GuardVerdict | None:
        """The verdict on these boosts without dropout, by the noise floor with it.

        None if compiled or recorded code would have to be made again for it.
        """
        active = [*(c.boost for c in candidates), *self.booster.active().values()]
        if any(boost.compiles for boost in active) or not can_run_without_dropout(recorded.model):
            return None
        written = self._boosted(recorded, under, still=True)
        boosted = self._boosted(recorded, candidates, still=True)
        if isinstance(written, GuardVerdict) or isinstance(boosted, GuardVerdict):
            return None
        compared = _where_used(recorded, candidates, written, boosted)
        risk = highest_risk(candidates)
        told = self._by_noise_floor(recorded, as_written, compared, risk, purpose, False)
        if told.common is not None:
            told = self._over_batches(recorded, candidates, under, compared, told)
        return replace(told, reason=f"{told.reason}, without dropout")

    def _purpose(self, candidates: Sequence[Candidate]) -> NoiseFloorPurpose:
        in_question = [*candidates, *self.group]
        return purpose_of(candidates, in_question, self.booster.active())

    def _boosted(
        self, recorded: RecordedCall, candidates: Sequence[Candidate], still: bool = False
    ) -> RepeatedCall | GuardVerdict:
        """The call under these boosts, or why it could not be made. still: without dropout."""
        refused = self.switch_on(candidates)
        if refused:
            self.switch_off(candidates)
            return next(iter(refused.values()))
        try:
            for _ in range(4):  # a boost that needs some calls to start is compared after them
                if not any(self.booster.steps_to_ready(candidate.id) for candidate in candidates):
                    break
                again(recorded)
            boosted = again(recorded, still=still)
            if still:
                return boosted
            # What does not act on the model's calls cannot tell after one of them.
            called = [
                c
                for c in candidates
                if c.boost.moment is Moment.MODEL and not c.boost.outside_calls
            ]
            for name in [candidate.id for candidate in called]:
                self.idle.pop(name, None)
                idle = self.booster.idle(name)
                if idle is not None:
                    self.idle[name] = idle
            return boosted
        except headroom.OUT_OF_MEMORY:  # beside what the Guard holds: it need not fail without
            self._no_room()
            return GuardVerdict(False, f"{NOT_COMPARED}{headroom.TOO_LITTLE}")
        except Exception as error:
            return GuardVerdict(False, first_line(error), failed=True)
        finally:
            self.switch_off(candidates)

    def switch_on(self, candidates: Sequence[Candidate]) -> dict[str, GuardVerdict]:
        """Switch these on; returns those that did not take hold, with their own reasons."""
        refused = {}
        for candidate in candidates:
            note = self.booster.on(candidate.order)
            if note is not None:
                failed = note.state == "failed"
                refused[candidate.id] = GuardVerdict(False, note.reason, failed=failed)
        return refused

    def switch_off(self, candidates: Sequence[Candidate]) -> None:
        for candidate in reversed(candidates):
            self.booster.off(candidate.id)


def _where_used(
    recorded: RecordedCall,
    candidates: Sequence[Candidate],
    written: RepeatedCall,
    boosted: RepeatedCall,
) -> tuple[RepeatedCall, RepeatedCall]:
    """Both repeated calls as they are compared: outputs that the loss does not use may differ under
    some boosts.
    """
    if not any(candidate.boost.cuts_outputs for candidate in candidates):
        return written, boosted
    return replays.where_used(recorded, written), replays.where_used(recorded, boosted)


def beside_calls(candidate: Candidate) -> bool:
    """Whether it leaves a call's arithmetic alone, as an allocator or a collector does."""
    return candidate.boost.moment is Moment.START and candidate.boost.risk is Risk.EXACT


def _is_ours(error: BaseException) -> bool:
    """Whether flatout's own code raised it, and not the program or torch on its behalf."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = bool(frames) and Path(frames[-1].filename).is_relative_to(OURS)
    return ours and not isinstance(error, replays.OtherOutputsError)
