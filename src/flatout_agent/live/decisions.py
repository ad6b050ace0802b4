"""What is decided on each boost, and what is still to be tried or compared.

Every decision is told here, also on what is left when the time is up or the program ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flatout_agent import wire
from flatout_agent.boost import Risk
from flatout_agent.live import decide
from flatout_agent.live.candidates import Candidate, Refusal, promise_of
from flatout_agent.live.compare import SURPRISING, Comparer
from flatout_agent.live.guard import GuardVerdict

LIKELY = 0.05
"""A gain that looks this large gets a second turn even without a time limit, and is believed if
there is no more time to look."""
NEAR_AGAIN_STEPS = 30
"""Steps until a boost that the Guard refused near its limit gets a second look: a deep network
amplifies errors in its first steps, and soon much less."""
NEAR_AGAIN_S, NEAR_AGAIN_LEAST_STEPS = 8.0, 10
"""A throw-away run first waits no longer than this, but at least for so many steps."""
MOST_NEAR_LOOKS = 2
"""Further looks at such a boost."""
LONG_PAIR_S = 2.0
"""Blocks of such pairs are long enough to outlast most disturbances."""
QUICK_GAIN = 1.3
"""A boost that gains more than this takes a pair or two."""
BROKEN = "the loss is NaN or Inf under it, or a call failed"
OWN = "the loss is NaN or Inf without it as well"


class Decisions:
    """The boosts of one tuning by how far each is decided."""

    def __init__(self, comparer: Comparer, measured: Sequence[str]) -> None:
        """measured: the kept boosts that an earlier process of this tuning compared alone."""
        self.comparer, self.machinery, self.state = comparer, comparer.machinery, comparer.state
        self.budget, self.measure = comparer.budget, comparer.measure
        self.untried: list[Candidate] = []
        self.near: list[tuple[Candidate, int]] = []
        """Boosts refused near the Guard's limit, and the step from which they are looked at
        again ..."""
        self._near_looks: Counter[str] = Counter()
        """... and how often they were refused so."""
        self.open: dict[str, tuple[Candidate, decide.Answer]] = {}
        """Boosts without a clear answer in their share of the time."""
        self.trying: list[Candidate] = []
        self.compared: list[Candidate] = []
        """The boosts of these that have passed the Guard and are being compared."""
        self.measured = set(measured)
        """Kept boosts that were compared alone."""
        self.harmless: set[str] = set()
        """Those of the others that seem to do no harm, after a few pairs."""
        self.small: list[Candidate] = []
        """Boosts whose gain may be too small to be measured alone."""
        self._decided: set[str] = set()
        """Boosts that were tried and have their verdict."""

    def seen_again(self, eligible: Sequence[Candidate], declined: Sequence[wire.Decided]) -> None:
        """The program has changed: other boosts may apply, and promise other gains."""
        promises = {(c.id, c.variant): c.promise for c in eligible}
        refused = {row.id: row for row in declined}
        for candidate in [c for c in self.untried if c.id in refused]:
            self.untried.remove(candidate)
            if not candidate.variant:
                self._decided.add(candidate.id)
                self.machinery.tell(refused[candidate.id])
        self.untried = [
            replace(c, promise=promises.get((c.id, c.variant), c.promise)) for c in self.untried
        ]
        waiting = [*self.untried, *(candidate for candidate, _ in self.near)]
        known = {*self._decided, *self.open, *self.state.kept_ids, *(c.id for c in waiting)}
        self.untried += [candidate for candidate in eligible if candidate.id not in known]

    def begin(self, group: list[Candidate]) -> None:
        """These have their turn."""
        ids = {candidate.id for candidate in group}
        self.trying = group
        others = [candidate for candidate in self.untried if candidate not in group]
        self.untried = [c for c in others if c.variant or c.id not in ids]
        self.near = [(near, step) for near, step in self.near if near.id not in ids]

    def not_now(self, candidate: Candidate, refusal: Refusal) -> None:
        """It gets no turn any more."""
        if candidate.id in self.state.kept_ids and not candidate.variant:
            self.measured.add(candidate.id)  # it stays as it is
            return
        self.near = [(near, step) for near, step in self.near if near.id != candidate.id]
        if candidate in self.untried:
            self.untried.remove(candidate)
        if candidate.id in self.open:
            _, answer = self.open.pop(candidate.id)
            if refusal.why == "no_time" and self.believed([candidate], answer):
                self.keep([candidate], answer, None, self.machinery.now(), 0.0)
            else:
                self.tell(candidate, "same", decide.why_not(answer), answer)
            return
        if candidate.variant:
            return
        kind: wire.LiveVerdict = "declined" if refusal.why is None else "untried"
        self.tell(candidate, kind, refusal.reason, why=refusal.why)

    def refused(self, candidate: Candidate, verdict: GuardVerdict, began: float) -> None:
        """The Guard refuses it: near its limit, it is looked at again later."""
        self._near_looks[candidate.id] += 1
        if verdict.near and self._near_looks[candidate.id] <= MOST_NEAR_LOOKS:
            steps = NEAR_AGAIN_STEPS
            if self.budget.throw_away and self._near_looks[candidate.id] == 1:
                affordable = int(NEAR_AGAIN_S / self.comparer.step_s())
                steps = min(steps, max(NEAR_AGAIN_LEAST_STEPS, affordable))
            self.near.append((candidate, self.machinery.steps() + steps))
            return
        kind: wire.LiveVerdict = "different" if verdict.error is not None else "declined"
        if verdict.failed:
            kind = "failed"
        self.tell(candidate, kind, verdict.reason, began=began, guarded=verdict)

    def without(
        self, group: Sequence[Candidate], idle: Mapping[str, str], began: float | None = None
    ) -> list[Candidate]:
        """The group without the boosts that did not take hold, which are told."""
        for candidate in [c for c in group if c.id in idle]:
            reason = f"did not engage: {idle[candidate.id]}"
            self.tell(candidate, "declined", reason, began=began)
        return [candidate for candidate in group if candidate.id not in idle]

    def keep(
        self,
        group: list[Candidate],
        answer: decide.Answer,
        verdict: GuardVerdict | None,
        began: float,
        start_s: float,
    ) -> None:
        """Keep these, which the pairs or, together, their parts have shown to be faster."""
        if not self.state.kept:
            self.state.verdict = verdict
            # The first unit may have been a slow one.
            self.budget.reserve(self.state.written_s * self.machinery.units_per_step())
        self.budget.found = True
        replaced = self.state.keep(group, answer.gain, answer.pairs)
        self.measure.switch(self.state.on)
        if len(group) == 1:
            self.measured.add(group[0].id)
        ids = {candidate.id for candidate in group}
        for other in replaced:
            if other.id not in ids:
                self.tell(other, "dropped", f"{group[0].id} is faster in its place")
        together = tuple(candidate.id for candidate in group) if len(group) > 1 else ()
        if answer.verdict == "unclear":
            reason = f"no time for more pairs: {decide.so_far(answer)}"
        else:
            reason = verdict.reason if verdict is not None else "too small to be seen alone"
        for candidate in group:
            self.tell(candidate, "kept", reason, answer, began, verdict, start_s, together=together)

    def drop(
        self,
        candidate: Candidate,
        answer: decide.Answer,
        verdict: GuardVerdict,
        began: float,
    ) -> None:
        """It was tried and is not kept."""
        kind: wire.LiveVerdict
        if answer.verdict == "broken":
            kind, reason = "different", BROKEN
        elif answer.verdict == "nonfinite":
            kind, reason = "declined", OWN
        elif not self.without([candidate], self.comparer.never_held([candidate]), began):
            return
        else:
            kind = "slower" if answer.verdict == "slower" else "same"
            reason = decide.why_not(answer)
            self.measured.add(candidate.id)
        if kind == "same" and answer.gain > 1 and candidate.boost.risk is Risk.EXACT:
            self.small.append(candidate)
        self.tell(candidate, kind, reason, answer, began, verdict)

    def broken(self, group: list[Candidate], answer: decide.Answer, began: float) -> None:
        """The loss broke under the kept boosts; no later step shows which of them did it."""
        rounding = [member for member in self.state.kept if member.boost.risk is not Risk.EXACT]
        for member in rounding or group:
            self.state.drop(member, None)
            self.tell(member, "different", f"with the others: {BROKEN}", answer, began)
        self.measure.switch(self.state.on)

    def believed(self, group: Sequence[Candidate], answer: decide.Answer) -> bool:
        """Whether these go into the plan although the time for their pairs is used up.

        After a throw-away run the plan is confirmed as a whole: an interval half as wide would
        exclude 1, or one two thirds as wide if there is no time for that. A boost that compiles
        must be beyond doubt.
        """
        share = 0.5 if self.budget.reserved_s else 2 / 3
        loads = group[0].boost.loads  # its blocks are long
        late = self.comparer.affordable_pairs() < 2
        expected = answer.gain <= SURPRISING * promise_of(group)
        long = late and expected and self.measure.pair_s() > LONG_PAIR_S
        clear = late and expected and answer.low > 1
        pairs = 2 if long or clear or (loads and answer.gain > QUICK_GAIN) else decide.FEWEST
        if loads and self.budget.reserved_s and answer.low > 1:
            pairs = 1  # if the confirmation refuses the plan, it tries the rest
        return (
            self.budget.throw_away
            and (late or len(group) == 1)
            and not any(candidate.boost.compiles for candidate in group)
            and answer.verdict == "unclear"
            and answer.pairs >= pairs
            and answer.gain > 1 + LIKELY
            and answer.low > answer.gain ** (1 - 1 / share)
        )

    def tell(
        self,
        candidate: Candidate,
        kind: wire.LiveVerdict,
        reason: str,
        answer: decide.Answer | None = None,
        began: float | None = None,
        guarded: GuardVerdict | None = None,
        compile_s: float = 0.0,
        why: wire.WhyUntried | None = None,
        together: tuple[str, ...] = (),
    ) -> None:
        """Record a decision with the findings of the pairs and the Guard."""
        self.open.pop(candidate.id, None)
        self._decided.add(candidate.id)
        noise_floor = guarded.noise_floor if guarded is not None else None
        compared = answer if answer is not None and answer.pairs else None
        self.machinery.tell(
            wire.Decided(
                candidate.id,
                kind,
                reason,
                params=candidate.params,
                gain=compared.gain if compared is not None else None,
                low=compared.low if compared is not None else None,
                high=compared.high if compared is not None else None,
                pairs=compared.pairs if compared is not None else 0,
                step=self.machinery.steps(),
                elapsed_s=self.budget.elapsed_s,
                cost_s=self.machinery.now() - began if began is not None else 0.0,
                compile_s=compile_s,
                step_ms=1000 * self.state.now_s if kind == "kept" else None,
                gradient_error=guarded.error if guarded is not None else None,
                batch_noise=noise_floor.batch_noise if noise_floor is not None else None,
                own_noise=noise_floor.redrawn if noise_floor is not None else None,
                again=candidate.again,
                why_untried=why,
                together=together,
            )
        )

    # What is left -------------------------------------------------------------------------------

    def blame(self, error: str) -> None:
        """The program failed outside the calls of its models: report the boosts that were on.

        Several of them are tried alone in the next process of a tuning. A real run may fail for
        many reasons: there only those being tried are suspected.
        """
        on = {order.id for order in self.machinery.on()}
        kept = [candidate for candidate in self.state.kept if candidate.id in on]
        suspects = [candidate for candidate in self.trying if candidate.id in on]
        if not suspects and self.budget.throw_away:
            suspects = kept
        reason = f"the program failed under it: {error}"
        for candidate in suspects:
            if len(suspects) == 1:
                self.tell(candidate, "failed", reason)
            else:
                kind: wire.LiveVerdict = "dropped" if candidate in kept else "untried"
                self.tell(candidate, kind, reason, why="program_failed")
            if candidate in kept:
                self.state.drop(candidate, None)
        self.compared = []

    def left_over(self, reason: str) -> None:
        """Report what was not tried when the program ends, with the reason.

        A throw-away program is too short for a clear answer: what leads for now is kept. The next
        one continues from it, and whole runs decide in the end.
        """
        answer, group = self.comparer.so_far, self.compared
        leads = answer is not None and answer.leads and answer.low > 1 / answer.gain
        if self.budget.throw_away and group and answer is not None and leads and answer.pairs > 1:
            self.state.keep(group, answer.gain, answer.pairs)
            together = tuple(candidate.id for candidate in group) if len(group) > 1 else ()
            told = f"the program ended: {decide.so_far(answer)}"
            for candidate in group:
                self.tell(candidate, "kept", told, answer, together=together)
            self.trying = [candidate for candidate in self.trying if candidate not in group]
        self.left(reason, "program_ended")

    def out_of_time(self) -> None:
        """Report what was not tried, or not decided, when the time is up."""
        answer, group = self.comparer.so_far, self.compared
        if answer is not None and group and self.believed(group, answer):
            self.keep(group, answer, None, self.machinery.now(), 0.0)
            self.trying = [candidate for candidate in self.trying if candidate not in group]
        self.left("no time left", "no_time")

    def left(self, reason: str, why: wire.WhyUntried | None) -> None:
        """Report what was not tried, or not decided, with the reason."""
        ended = "the program ended" if why == "program_ended" else reason
        waiting = [*self.trying, *(candidate for candidate, _ in self.near), *self.untried]
        known = {*self._decided, *self.open, *self.state.kept_ids}
        for candidate in [c for c in waiting if c.variant == 0 and c.id not in known]:
            answer = self.comparer.so_far if candidate in self.compared else None
            pairs = answer.pairs if answer is not None else 0
            told = f"{ended}: {decide.so_far(answer)}" if answer and pairs else reason
            self.tell(candidate, "untried", told, answer, why=why)
        for candidate, answer in list(self.open.values()):
            self.tell(candidate, "untried", f"{ended}: {decide.so_far(answer)}", answer, why=why)
