"""Keeps calls of the program's models, while they are asked for, until their gradients came back.

Only if there is room beside the program: a call that finds none is made again without the Guard.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from flatout_agent.boosts import load
from flatout_agent.job import Job
from flatout_agent.limits import world_size
from flatout_agent.live import calls, headroom
from flatout_agent.live.calls import RecordedCall, begin, finish
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.failed_calls import FailedCalls, first_line
from flatout_agent.speedups import nests, own_hooks
from flatout_agent.tell.recorder import Recorder

MOST_PASSED_OVER = 6
"""Calls that it waits for one in which all boosts in question do something."""
UNSEEN = "no tensor was found in the {} that a model returns"
MOST_WAITING = 64
"""Calls kept that wait for their backward pass."""
MOST_OF_A_MODEL = 5
"""Calls of one model in a loop over time that are compared: each is repeated some ten times."""
NOTHING, BATCH, COMPARE, GIVE = range(4)
"""The purpose for which a unit's calls are recorded: none, as another batch, to be compared with
that, or for others."""


class RecordedCalls:
    """The calls of the unit under way."""

    def __init__(self, job: Job, recorder: Recorder, failed_calls: FailedCalls) -> None:
        self.job, self.recorder, self._failed_calls = job, recorder, failed_calls
        self.purpose = NOTHING
        self.not_compared: dict[int, str] = {}
        """Why a call could not be compared, by model."""
        self._other_batch: dict[int, RecordedCall] = {}
        """A call on another batch, by model."""
        self._waiting: list[RecordedCall] = []
        """Calls whose backward pass is still to come."""
        self._passed_over = 0
        self._written: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Models whose inputs the program writes to before the backward pass ends."""

    def begin(self, purpose: int) -> None:
        """Record the next calls for this purpose. Only to compare, the other batch is kept."""
        self.purpose, self._waiting, self.not_compared, self._passed_over = purpose, [], {}, 0
        if purpose != COMPARE:
            self._other_batch = {}

    def unit_ended(self) -> None:
        """Calls that have had no backward pass get none; another batch is followed by the next."""
        self._waiting = []
        if self.purpose == BATCH and self._other_batch:
            self.purpose = COMPARE

    def have_other_batch(self) -> bool:
        """Whether there is a call of every model that can be repeated."""
        given = [self._other_batch.get(id(model)) for model in self.job.models]
        return bool(given) and all(call is not None and call.complete for call in given)

    def call(
        self,
        model: torch.nn.Module,
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
        group: Sequence[Candidate],
    ) -> Any:
        """A root model's call in training, recorded for the boosts of this group.

        If it finds no memory beside what the Guard holds, that is dropped, and the call is made
        once more: neither the program nor a boost is to blame for it.
        """
        recorded: RecordedCall | None = None
        hooked = ExitStack()

        def in_room(*args: Any, **kwargs: Any) -> Any:
            nonlocal recorded
            try:
                return call(*args, **kwargs)
            except headroom.OUT_OF_MEMORY:
                holds = recorded is not None or self._waiting or self._other_batch
                if not holds or world_size() > 1:  # other ranks would not make the call again
                    raise
            # Outside the handler, so what the failed call held is free.
            hooked.close()
            self.recorder.safely("guard", self._give_way, recorded)
            recorded = None
            return call(*args, **kwargs)

        with hooked:
            if not self._passes_over(group, args, kwargs):
                recorded = self._record(model, args, kwargs, hooked)
            output = self._failed_calls.call(model, in_room, args, kwargs)
        if recorded is not None:
            self.recorder.safely("guard", self._finish, recorded, output)
        return output

    def completed(self) -> list[RecordedCall]:
        """A backward pass has ended: the calls whose gradients it brought, to be compared or given.

        The weights are still those of the calls.
        """
        finished = [recorded for recorded in self._waiting if recorded.used]
        self._waiting = [recorded for recorded in self._waiting if not recorded.used]
        for recorded in finished:
            recorded.goes_on = self.job.graph_created
        ready = []
        for recorded in finished:
            reason = recorded.refusal
            if reason == calls.WRITTEN and recorded.model not in self._written:
                self._written.add(recorded.model)  # the next call's copies may be compared
            elif reason is not None:
                self.not_comparable(recorded.model, reason)
            else:
                ready.append(recorded)
        if self.purpose == COMPARE:
            for recorded in ready:
                recorded.other_batch = self._other_batch.get(id(recorded.model))
        elif self.purpose == GIVE:
            self._other_batch.update({id(recorded.model): recorded for recorded in ready})
        else:
            for recorded in ready:
                self._other_batch.setdefault(id(recorded.model), recorded)
            ready = []
        return ready

    def out_of_memory(self) -> None:
        """There is no room for what the Guard keeps: record nothing more for this question."""
        self.purpose, self._waiting = NOTHING, []
        for model in self.job.models:
            self.not_comparable(model, headroom.TOO_LITTLE)

    def not_comparable(self, model: torch.nn.Module, reason: str) -> None:
        """Note why a call of this model could not be compared."""
        self.not_compared[id(model)] = reason

    def _passes_over(self, group: Sequence[Candidate], args: Any, kwargs: Any) -> bool:
        """Whether a boost in question does nothing in this call, so the next one may show more."""
        if self._passed_over >= MOST_PASSED_OVER:
            return False
        asked = [getattr(load(candidate.id), "acts_on", None) for candidate in group]
        passes = any(
            not self.recorder.safely("acts on", acts_on, args, kwargs)
            for acts_on in asked
            if acts_on is not None
        )
        self._passed_over += passes
        return passes

    def _record(
        self, model: torch.nn.Module, args: Any, kwargs: Any, hooked: ExitStack
    ) -> RecordedCall | None:
        try:
            reason = calls.not_repeatable(model) or headroom.lack_for_call(model)
            if reason is not None:
                self.not_comparable(model, reason)
            else:
                recorded = begin(model, args, kwargs, copies=model in self._written)
                recorded.shown = hooked.enter_context(own_hooks.watch(model, called=True))
                return recorded
        except headroom.OUT_OF_MEMORY:
            self.out_of_memory()
        except Exception as error:
            self.recorder.fault("guard", error)
            self.not_comparable(model, first_line(error))
        return None

    def _finish(self, recorded: RecordedCall, output: Any) -> None:
        """Keep the call for its backward pass, if there is room for it."""
        reason = headroom.lack_for_call(recorded.model, output, self._waiting, recorded.shown)
        if reason is not None:
            self.not_comparable(recorded.model, reason)
            return
        try:
            finish(recorded, output, values=self.purpose == COMPARE)
        except headroom.OUT_OF_MEMORY:
            self.out_of_memory()
            return
        found = recorded.output_gradients or next(nests.tensors(output), None) is not None
        if not found and hasattr(output, "__dict__"):
            self.not_comparable(recorded.model, UNSEEN.format(type(output).__name__))
        else:
            self._waiting = [*self._waiting[-MOST_WAITING:], recorded]

    def _give_way(self, recorded: RecordedCall | None) -> None:
        """Put everything back as it was before this call, and free what the Guard holds."""
        if recorded is not None:
            recorded.before()
        self.out_of_memory()
        self._other_batch = {}
        if self.job.device != "cpu":
            getattr(torch, self.job.device).empty_cache()


def some_of_each_model(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    """The first and the last call of each model, and some between, in order."""
    by_model: dict[int, list[RecordedCall]] = {}
    for recorded in calls:
        by_model.setdefault(id(recorded.model), []).append(recorded)
    some: list[RecordedCall] = []
    for of_one in by_model.values():
        number = min(len(of_one), MOST_OF_A_MODEL)
        places = {i * (len(of_one) - 1) // max(1, number - 1) for i in range(number)}
        some += [of_one[place] for place in sorted(places)]
    return some
