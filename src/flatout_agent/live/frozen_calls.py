"""Whether a boost computes the same in models that are not trained.

No gradient comes back to a teacher or a reference, so the outputs of its calls are compared. The
bounds are those of the outputs of trained models, without their gradients' noise.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from flatout_agent.apply.booster import Booster
from flatout_agent.live import guard, headroom
from flatout_agent.live.calls import not_repeatable
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.failed_calls import first_line
from flatout_agent.live.guard import GuardVerdict
from flatout_agent.speedups import nests, own_hooks
from flatout_agent.speedups.forward_state import SavedState, keep

Begun = tuple[SavedState, own_hooks.Shown]
"""The state before a call, and what the program's hooks may be given in it."""
NONE_SEEN = "no call of a model that is not trained was seen"


class FrozenCalls:
    """Repeats calls of such models, each once for a question."""

    def __init__(self, booster: Booster) -> None:
        self.booster = booster
        self.asked: Candidate | None = None
        """The boost in question, or None."""
        self._on = False
        self._verdicts: dict[int, GuardVerdict] = {}
        """By model."""
        self.idle: str | None = None
        """Why the boost did not take hold, as far as known."""

    def ask(self, candidate: Candidate | None, on: bool) -> None:
        """Compare the next call of each model under this boost. on: the program runs under it."""
        self.asked, self._on, self._verdicts, self.idle = candidate, on, {}, None

    def begin(self, model: torch.nn.Module, hooked: ExitStack) -> Begun | None:
        """What is needed to repeat the model's next call, or None if it is not to be compared.

        hooked: to be left after that call.
        """
        if self.asked is None or id(model) in self._verdicts:
            return None
        reason = not_repeatable(model)
        if reason is not None:
            self._verdicts[id(model)] = GuardVerdict(False, reason)
            return None
        try:
            before = keep([model])
        except headroom.OUT_OF_MEMORY:
            self._verdicts[id(model)] = GuardVerdict(False, headroom.TOO_LITTLE)
            return None
        return before, hooked.enter_context(own_hooks.watch(model, called=True))

    @property
    def seen(self) -> bool:
        """Whether a call was compared."""
        return bool(self._verdicts)

    @property
    def verdict(self) -> GuardVerdict:
        """The worst one so far."""
        return guard.worst(list(self._verdicts.values())) or GuardVerdict(False, NONE_SEEN)

    def compare(
        self, begun: Begun, model: torch.nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        """Repeat a call, whose output is given, the other way."""
        before, shown = begun
        lack = headroom.lack_for_call(model, output)
        if lack is not None:
            self._verdicts[id(model)] = GuardVerdict(False, lack)
            return
        after = keep([model])

        def again() -> list[torch.Tensor]:
            before()
            with own_hooks.watch(model, called=False) as found:
                return _outputs((model(*args, **kwargs), found.outputs))

        try:
            self._verdicts[id(model)] = self._compared(
                model, _outputs((output, shown.outputs)), again
            )
        except headroom.OUT_OF_MEMORY:
            self._verdicts[id(model)] = GuardVerdict(False, headroom.TOO_LITTLE)
        finally:
            after()

    def _compared(
        self, model: torch.nn.Module, outputs: list[torch.Tensor], again: Any
    ) -> GuardVerdict:
        assert self.asked is not None
        order = self.asked.order
        if self._on:
            self.booster.off(order.id)
            try:
                written = again()
                rounded = guard.of_rounded_weights(model, written, again)
            finally:
                self.booster.on(order)
            return guard.outputs_verdict(written, outputs, rounded)
        if not guard.same_again(again(), outputs):
            return GuardVerdict(False, "the same call of the model gave two different results")
        rounded = guard.of_rounded_weights(model, outputs, again)
        note = self.booster.on(order)
        try:
            if note is not None:
                return GuardVerdict(False, note.reason, failed=note.state == "failed")
            boosted = again()
            self.idle = self.booster.idle(order.id)
        except headroom.OUT_OF_MEMORY:
            raise
        except Exception as error:
            return GuardVerdict(False, first_line(error), failed=True)
        finally:
            self.booster.off(order.id)
        return guard.outputs_verdict(outputs, boosted, rounded)


def _outputs(nest: Any) -> list[torch.Tensor]:
    return [t.detach() for t in nests.tensors(nest) if t.is_floating_point()]
