"""Applies the ordered boosts at their moments and records the outcome of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flatout_agent import wire
from flatout_agent.boost import Applied, Boost, Declined, Moment, Switch
from flatout_agent.boosts import BoostModule, load
from flatout_agent.job import Job
from flatout_agent.tell.recorder import Recorder


class Booster:
    """A boost may meet several targets (the models of a GAN): one that takes it is enough."""

    def __init__(self, job: Job, boosts: tuple[wire.BoostOrder, ...], recorder: Recorder) -> None:
        self.job = job
        self.recorder = recorder
        self.orders: list[tuple[wire.BoostOrder, BoostModule]] = []
        self.applied: dict[str, list[Applied]] = {}
        self.undo_follows = False
        """Whether all boosts are undone at the end; reported ones are then not freed earlier."""
        self._reported: dict[str, list[Applied]] = {}
        self._took_hold: set[str] = set()
        """Boosts that took hold before they were switched off, with these parameters."""
        self._idle: dict[str, str] = {}
        """Why the others had not taken hold when they were switched off."""
        self._params = {order.id: dict(order.params) for order in boosts}
        self._notes: dict[str, wire.BoostNote] = {}
        for order in boosts:
            module = recorder.safely(f"load {order.id}", load, order.id)
            if module is None:
                self._note(order.id, "failed", "could not be loaded")
            else:
                self.orders.append((order, module))

    def at(self, moment: Moment, target: Any) -> None:
        """Apply every ordered boost of this moment to `target`."""
        for order, module in self.orders:
            once = moment is Moment.START and order.id in self.applied
            if module.BOOST.moment is moment and not once:
                self._apply(order, module, target)

    def _apply(self, order: wire.BoostOrder, module: BoostModule, target: Any) -> None:
        try:
            applied = module.apply(self.job, target, dict(order.params))
        except Declined as reason:
            self._note(order.id, "declined", str(reason))
        except Exception as error:
            self._note(order.id, "failed", f"{type(error).__name__}: {error}")
            self.recorder.fault(f"boost {order.id}", error)
        else:
            self.applied.setdefault(order.id, []).append(applied)
            self._note(order.id, "applied", "")

    def _note(self, boost: str, state: wire.BoostState, reason: str) -> None:
        previous = self._notes.get(boost)
        if previous is not None and (previous.state == "applied" or previous.state == state):
            return
        self._notes[boost] = note = wire.BoostNote(boost, state, reason)
        self.recorder.write(note)

    def on(self, order: wire.BoostOrder) -> wire.BoostNote | None:
        """Switch a boost on in the running program, for all present and future targets.

        Returns why it took hold nowhere, or None if it did or there is no target yet.
        """
        module = load(order.id)
        self.off(order.id)  # possibly with other parameters
        if order.params != self._params.get(order.id):
            self._took_hold.discard(order.id)
            self._idle.pop(order.id, None)
            self._params[order.id] = dict(order.params)
        self._notes.pop(order.id, None)
        self.orders.append((order, module))
        for target in self._targets(module.BOOST.moment):
            self._apply(order, module, target)
        if module.BOOST.switch is Switch.ITERATOR:
            self.recorder.safely(f"hand over {order.id}", self.job.hand_over)
        note = self._notes.get(order.id)
        if note is None or note.state == "applied":
            return None
        self.off(order.id)
        return note

    def off(self, boost: str) -> None:
        """Switch a boost off again, wherever it is on."""
        idle = self.idle(boost)
        if idle is not None:
            self._idle[boost] = idle
        applied = self.applied.pop(boost, [])
        unknown = idle is None and boost not in self._took_hold
        if unknown and any(hold for hold, _ in self._answers(boost, applied)):
            self._took_hold.add(boost)
        for part in reversed(applied):
            self.recorder.safely(f"undo {boost}", part.undo)
        self.orders = [pair for pair in self.orders if pair[0].id != boost]
        if applied and load(boost).BOOST.switch is Switch.ITERATOR:
            self.recorder.safely(f"hand over {boost}", self.job.hand_over)

    def forget(self, boost: str) -> None:
        """Free what `undo` has left, or will leave, for another use that will not come."""
        forget = getattr(load(boost), "forget", None)
        if forget is not None:
            self.recorder.safely(f"forget {boost}", forget, self.job)

    def active(self) -> dict[str, Boost]:
        """The boosts that are on and took hold somewhere."""
        return {order.id: module.BOOST for order, module in self.orders if order.id in self.applied}

    def _targets(self, moment: Moment) -> list[Any]:
        """The existing targets for a boost of this moment."""
        import torch  # the host loads this module without torch

        present: dict[Moment, Iterable[Any]] = {
            Moment.START: [torch],
            Moment.LOADER: self.job.loaders,
            Moment.MODEL: self.job.models,
            Moment.FROZEN: self.job.frozen,
            Moment.OPTIMIZER: self.job.optimizers,
        }
        return list(present[moment])

    def idle(self, boost: str) -> str | None:
        """Why a boost that is or was on did not take hold, as far as known, or None if it did."""
        if boost in self._took_hold:
            return None
        if boost not in self.applied:
            ordered = any(order.id == boost for order, _ in self.orders)
            return "nothing that it acts on was seen" if ordered else self._idle.get(boost)
        answers = self._answers(boost, self.applied[boost])
        if not answers or any(hold for hold, _ in answers):
            return None
        return "; ".join(dict.fromkeys(text for _, text in answers if text))

    def _answers(self, boost: str, parts: list[Applied]) -> list[tuple[bool, str]]:
        """(took hold, detail) of the targets that know."""
        answers = [self.recorder.safely(f"engaged {boost}", part.engaged) for part in parts]
        return [answer for answer in answers if answer is not None]

    def steps_to_ready(self, boost: str) -> int:
        """Steps that must pass under it before it can show its gain; 0 while it is off."""
        parts = self.applied.get(boost, [])
        answers = [self.recorder.safely(f"ready {boost}", part.steps_to_ready) for part in parts]
        return max((answer or 0 for answer in answers), default=0)

    def fills(self) -> bool:
        """Whether an active boost cannot show its gain yet."""
        return any(self.steps_to_ready(boost) > 0 for boost in self.applied)

    def undo(self) -> None:
        """Undo every boost for good, the last one first."""
        for boost in reversed(list(dict.fromkeys([*self._reported, *self.applied]))):
            self.forget(boost)
            parts = self._reported.pop(boost, []) + self.applied.pop(boost, [])
            for applied in reversed(parts):
                self.recorder.safely(f"undo {boost}", applied.undo)

    def report(self, final: bool = True) -> None:
        """Record for each applied boost whether it took hold on at least one target.

        If not final, record only those that did, and free them and the models that they hold,
        unless they are still to be undone.
        """
        for boost, parts in list(self.applied.items()):
            answers = [self.recorder.safely(f"engaged {boost}", part.engaged) for part in parts]
            known_answers = [answer for answer in answers if answer is not None]
            if not known_answers:
                continue
            took_hold = any(hold for hold, _ in known_answers)
            details = dict.fromkeys(
                text for hold, text in known_answers if text and hold == took_hold
            )
            if not final:
                if not took_hold:
                    continue
                del self.applied[boost]
                if self.undo_follows:
                    self._reported.setdefault(boost, []).extend(parts)
            state: wire.BoostState = "engaged" if took_hold else "idle"
            self.recorder.write(wire.BoostNote(boost, state, "; ".join(details)))
        for order, module in self.orders if final else ():
            if order.id not in self._notes:
                reason = f"it was never applied: no {module.BOOST.moment.value} was seen"
                self._note(order.id, "declined", reason)
