"""Check the arguments of probability distributions in one step of sixteen.

## What it does
Switches the argument checks of `torch.distributions` off, with torch's own switch for that
(`Distribution.set_default_validate_args`), and on again for each sixteenth step.

## Why it is faster
Each distribution that the program makes compares every parameter with its constraint, and each
`log_prob` the values: several small operators a call. On a GPU the program also waits for the
result of each check. Reinforcement learning, variational autoencoders and flows make several
distributions a step.

## When it does nothing
- The program makes no distributions, or has switched the checks off itself, or Python runs with -O.
- Distributions that are made with `validate_args=True` are checked each time.
- The model is compiled: each switch would compile it anew.

## What it may change
The numbers stay the same. An argument that is out of range, such as a NaN, raises torch's error up
to sixteen steps later.

## How it is undone
The switch is put back as it was.

## References
- https://docs.pytorch.org/docs/stable/distributions.html
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import compiled_by_user
from flatout_agent.attach.replacing import Replacement
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch
from flatout_agent.boosts import speedup_of_work

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.MODEL, switch=Switch.STEP)

CHECK_EVERY = 16


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if any(model.compiled for model in facts.models):
        return "the model is compiled"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: some small operators of each distribution, nothing for most programs."""
    return speedup_of_work(facts, 1.03)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Leave the checks out from now on, but for each sixteenth step."""
    if compiled_by_user(target) or type(target).__name__ == "OptimizedModule":
        raise Declined("the model is compiled")
    checks = _Checks()
    stop = job.after_step(checks.after_step)

    def undo() -> None:
        stop()
        checks.end()

    return Applied(undo, checks.engagement)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The line that switches the checks off altogether."""
    return (
        "# once the program is known to be right\n"
        "torch.distributions.Distribution.set_default_validate_args(False)\n"
    )


class _Checks:
    """torch's switch for the checks, and how many distributions were made without them."""

    def __init__(self) -> None:
        from torch.distributions import Distribution

        self.kind: Any = Distribution
        if not self.kind._validate_args:
            raise Declined("the checks are switched off already")
        self.steps = self.unchecked = 0
        self.ours: bool | None = False
        """What the switch was set to here, or None once the program has set it itself."""
        make = self.kind.__init__

        @functools.wraps(make)
        def counted(distribution: Any, *args: Any, **options: Any) -> None:
            make(distribution, *args, **options)
            self.unchecked += not distribution._validate_args

        self.count = Replacement(self.kind, {"__init__": counted})
        self.count.put()
        self.kind.set_default_validate_args(False)

    def after_step(self) -> None:
        if self.kind._validate_args is not self.ours:
            self.ours = None
        if self.ours is None:
            return
        self.steps += 1
        self.ours = self.steps % CHECK_EVERY == 0
        self.kind.set_default_validate_args(self.ours)

    def end(self) -> None:
        """Switch the checks on, unless the program has set them itself."""
        self.count.back()
        if self.kind._validate_args is self.ours:
            self.kind.set_default_validate_args(True)
        self.ours = None

    def engagement(self) -> tuple[bool, str]:
        if self.ours is None:
            return False, "the program sets the checks itself"
        if not self.unchecked:
            return False, "no distribution was made"
        return True, f"{self.unchecked} distributions made without checks"
