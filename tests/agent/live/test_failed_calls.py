"""A call that raises under a boost, and the program's own errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.boosts import load as load_real
from guarded import cross_entropy, vectors
from planted import Layer, planted, times

pytestmark = pytest.mark.usefixtures("one_thread")


class Flaky(nn.Module):
    """Raises what the program itself raises."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop = nn.Linear(20, 10), nn.Dropout(0.2)
        self.error: Exception | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.drop(self.body(x))
        if self.error is not None:
            raise self.error
        return found


def fails_after(calls: int) -> Layer:
    left = [calls]

    def layer(call: Any) -> Any:
        def run(*args: Any) -> Any:
            left[0] -= 1
            torch.rand(3)
            if left[0] < 0:
                raise torch.OutOfMemoryError("no memory left")
            return call(*args)

        return run

    return layer


def test_a_call_that_fails_under_a_boost_is_made_again_as_written(program):
    run = program(Flaky(), flaky=planted(fails_after(0)), right=planted(times(1.0)),
                  update=load_real("fused-optimizer"))  # fmt: skip
    run.keep("flaky", "right")
    run.kept.append(run.candidate("update"))
    assert run.booster.on(run.kept[-1].order) is None
    x, y = vectors()
    drawn = torch.get_rng_state()
    output = run.model(x)
    after = torch.get_rng_state()
    torch.set_rng_state(drawn)
    run.checks.failed_calls.on = False
    assert torch.equal(output, run.model(x)), "the masks are those of the program"
    assert torch.equal(after, torch.get_rng_state())
    ((ids, reason),) = run.unsound
    assert ids == ["flaky", "right"], "an optimizer's boost is not at fault"
    assert reason == "a call failed under it: OutOfMemoryError: no memory left"
    cross_entropy(output, y).backward()


def test_the_programs_own_error_reaches_it_unchanged(program):
    run = program(Flaky(), right=planted(times(1.0)))
    run.keep("right")
    own = run.model.error = KeyError("mine")
    with pytest.raises(KeyError) as raised:
        run.model(vectors()[0])
    assert raised.value is own
    assert raised.value.__context__ is None
    assert raised.traceback[-1].name == "forward"
    assert run.unsound == []
    assert list(run.booster.applied) == ["right"], "it is on as it was"
    run.model.error = None
    run.step()


def test_an_interrupt_is_not_held_up(program):
    run = program(Flaky(), right=planted(times(1.0)))
    run.keep("right")
    run.model.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run.model(vectors()[0])
