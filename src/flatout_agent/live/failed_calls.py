"""A call that raises under a boost is repeated as written, to find out whose error it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Moment
from flatout_agent.job import Job

CALLED = (Moment.MODEL, Moment.START, Moment.FROZEN)
"""Boosts of these moments act on what a call of a model computes."""

Unsound = Callable[[Sequence[str], str], None]
"""Called with the boosts that must go, and why."""


class FailedCalls:
    """Surrounds the calls of root models."""

    def __init__(self, job: Job, booster: Booster, unsound: Unsound) -> None:
        """unsound: called with the boosts that must go, and why."""
        self.job, self.booster, self._unsound = job, booster, unsound
        self.on = False
        """Some boost of the calls is on."""
        self.replaying = False
        """A call is being repeated."""

    def call(self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The call, repeated without the boosts if any is on and it raises.

        Only torch's own generator is restored: reading those of Python, NumPy and the devices takes
        some 60 microseconds in every step, and other numbers after an error do no harm.
        """
        if not self.on:
            return call(*args, **kwargs)
        random_state = torch.default_generator.get_state()
        try:
            return call(*args, **kwargs)
        except Exception as error:
            reason = first_line(error)
        # Outside the handler, so the program's own error does not have ours as its context, and
        # what the failed call held is free.
        torch.set_rng_state(random_state)
        orders = [
            order
            for order, module in self.booster.orders
            if order.id in self.booster.applied and module.BOOST.moment in CALLED
        ]
        for order in reversed(orders):
            self.booster.off(order.id)
        self.replaying = True
        try:
            output = model(*args, **kwargs)
        except BaseException:  # the program's own: the boosts are not at fault
            for order in orders:
                self.booster.on(order)
            raise
        finally:
            self.replaying = False
        boosts = [order.id for order in orders]
        self._unsound(boosts, f"a call failed under it: {reason}")
        return output


def first_line(error: BaseException) -> str:
    """The error's class and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
