"""The guard on a boost that must see some calls first: what it does after them is compared."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from flatout_agent.attach.chain import Depth
from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.job import Job
from flatout_agent.speedups.graphs import graphed_calls
from planted import Program, assert_unharmed, planted
from replayed import Capture

pytestmark = pytest.mark.usefixtures("one_thread")


class Recorded:
    """cuda-graphs with a stand-in for the device's part."""

    BOOST = Boost("0", Risk.EXACT, Moment.MODEL, compiles=True)

    def __init__(self, factor: float = 1.0) -> None:
        self.capture = Capture(factor)

    def apply(self, job: Job, target: Any, params: Any) -> Applied:
        return graphed_calls.put_on(job, target, self.capture)

    def forget(self, job: Job) -> None:
        for calls in graphed_calls.of_job(job):
            calls.forget()


def calls_of(run: Program) -> graphed_calls.GraphedCalls:
    (calls,) = graphed_calls.of_job(run.job)
    return calls


def test_what_is_recorded_is_what_is_compared(program):
    run = program(graphs=Recorded())
    verdict = run.check("graphs")
    assert verdict.passed, verdict.reason
    assert verdict.error is not None
    assert run.checks._judge.idle == {}
    assert calls_of(run).replayed == 2
    assert not run.booster.applied
    assert_unharmed(run)
    run.keep("graphs")
    for _ in range(3):
        run.step()
    assert len(run.boosts["graphs"].capture.recorded) == 1
    assert calls_of(run).replayed == 5
    assert run.unsound == []
    assert_unharmed(run)


def test_a_wrong_recording_is_refused(program):
    """As written, its first calls are right."""
    run = program(graphs=Recorded(1.02))
    verdict = run.check("graphs")
    assert not verdict.passed
    assert verdict.error == pytest.approx(0.02, rel=0.5)
    assert_unharmed(run)


def test_a_look_at_it_while_it_is_on_leaves_the_program_as_it_is(program):
    run = program(graphs=Recorded())
    run.keep("graphs")
    for _ in range(4):
        run.step()
    verdict = run.ask(run.checks.check_together(run.kept))
    assert verdict.passed, verdict.reason
    assert calls_of(run).replayed > 4
    assert run.unsound == []
    assert_unharmed(run)


class Longer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.02


def test_calls_under_it_are_not_compared_in_one_place(program):
    """Nor do they write where the program still has its gradients."""
    run = program(
        graphs=Recorded(), wrong=planted(lambda call: lambda *args: Longer.apply(call(*args)))
    )
    run.keep("graphs")
    for _ in range(4):
        run.step()
    assert not run.check("wrong").passed
    assert_unharmed(run)


@pytest.mark.parametrize("steps", [0, 2, 1000])
def test_one_that_is_never_ready_is_compared_all_the_same(program, steps):
    called = []

    def apply(job: Job, target: Any, params: Any) -> Applied:
        def layer(call: Any) -> Any:
            return lambda *args: called.append(1) or call(*args)

        unwrap = job.wrap_call(target, Depth.COMPILE, layer)
        return Applied(unwrap, steps_to_ready=lambda: max(0, steps - len(called)))

    module = types.SimpleNamespace(BOOST=Boost("0", Risk.EXACT, Moment.MODEL), apply=apply)
    run = program(slow=module)
    assert run.check("slow").passed
    assert len(called) == min(steps, 4) + 1
    assert_unharmed(run)
