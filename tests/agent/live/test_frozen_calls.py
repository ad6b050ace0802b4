"""The guard on boosts that act on models that are not trained: their outputs are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flatout_agent.attach.chain import Depth
from flatout_agent.boost import Moment, Risk
from flatout_agent.live import frozen_calls, rechecks
from guarded import cross_entropy, mlp
from planted import NO_MEMORY, Layer, Program, Shift, late, planted, raising, times

pytestmark = pytest.mark.usefixtures("one_thread")


def beside(layer: Layer) -> Any:
    return planted(layer, Risk.ROUNDING, Moment.FROZEN)


class Distilling:
    """The program, with a teacher that draws random numbers."""

    def __init__(self, run: Program) -> None:
        torch.manual_seed(1)
        self.run, self.teacher = run, nn.Sequential(mlp(), nn.Dropout(0.1), nn.BatchNorm1d(10))
        run.job.frozen.append(self.teacher)

        def watched(call: Callable[..., Any]) -> Callable[..., Any]:
            def watch(*args: Any) -> Any:
                if run.checks.replaying:
                    return call(*args)
                return run.checks.frozen_call(self.teacher, call, args, {})

            return watch

        run.job.wrap_call(self.teacher, Depth.WATCH, watched)

    def step(self) -> None:
        x, y = self.run.data()
        with torch.no_grad():
            wanted = self.teacher(x)
        found = self.run.model(x)
        loss = F.mse_loss(found, wanted) + cross_entropy(found, y)
        self.run.losses.append(loss.item())
        self.run.backward(loss)
        self.run.update()


@pytest.fixture
def distilling(program: Callable[..., Program]) -> Callable[..., Distilling]:
    return lambda **boosts: Distilling(program(**boosts))


def noisy(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        output = call(*args)
        rolled = output.flatten().roll(1).view_as(output)
        return output + 0.1 * output.std() * rolled / rolled.std()

    return run


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (times(1.001), None),
        (times(1.02), "outputs 102.0% as large as they were"),
        (times(float("nan")), "more than"),
        (noisy, "more than"),
        (raising(RuntimeError("no kernel")), "RuntimeError: no kernel"),
    ],
)
def test_outputs_are_compared_and_training_stays_as_it_was(distilling, layer, reason):
    plain = distilling()
    for _ in range(4):
        plain.step()
    state = torch.get_rng_state()
    job = distilling(beside=beside(layer))
    verdict = job.run.check("beside", job.step)
    assert verdict.passed is (reason is None), verdict.reason
    assert (reason or "output error") in verdict.reason
    while len(job.run.losses) < 4:
        job.step()
    assert job.run.losses == plain.run.losses
    assert torch.equal(torch.get_rng_state(), state)
    buffers = zip(job.teacher.buffers(), plain.teacher.buffers(), strict=True)
    assert all(torch.equal(*pair) for pair in buffers)
    assert not job.run.booster.applied


def test_what_a_hook_gathers_is_compared_and_it_is_not_called_again(distilling):
    shift, found = Shift(), []
    job = distilling(wrong=beside(shift.layer), right=beside(times(1.0)))
    job.teacher.insert(1, nn.Sequential(shift, nn.LayerNorm(10)))
    shift.register_forward_hook(lambda module, args, output: found.append(output))
    assert job.run.check("right", job.step).passed
    verdict = job.run.check("wrong", job.step)
    assert not verdict.passed
    assert len(found) == len(job.run.losses)


def test_a_hook_that_changes_the_output_is_not_compared(distilling):
    job = distilling(right=beside(times(1.0)))
    job.teacher[0].register_forward_hook(lambda module, args, output: output.square())
    verdict = job.run.check("right", job.step)
    assert verdict.reason == "the same call of the model gave two different results"


def test_one_whose_calls_cannot_be_repeated_is_refused(distilling, monkeypatch):
    monkeypatch.setattr(frozen_calls, "not_repeatable", lambda model: "compiled, with hooks")
    job = distilling(right=beside(times(1.0)))
    assert job.run.check("right", job.step).reason == "compiled, with hooks"


def test_one_that_finds_no_memory_beside_the_guard_has_not_failed(distilling):
    verdict = (job := distilling(hungry=beside(NO_MEMORY))).run.check("hungry", job.step)
    assert (verdict.failed, verdict.reason) == (False, "too little GPU memory to compare")
    assert job.run.recorder._faults == set()


def test_without_a_call_it_is_not_kept(distilling):
    job = distilling(beside=beside(times(1.0)))
    checked = job.run.check_all("beside")
    assert checked.refused["beside"].reason == frozen_calls.NONE_SEEN


def test_the_verdicts_on_others_are_their_own(distilling):
    job = distilling(beside=beside(noisy), wrong=planted(times(1.02)), right=planted(times(1.0)))
    checked = job.run.check_all("right", "wrong", "beside", step=job.step)
    assert set(checked.refused) == {"wrong", "beside"}
    assert [candidate.id for candidate in checked.sound] == ["right"]


def test_one_that_goes_wrong_later_is_taken_out(distilling):
    steps: list[Any] = []
    job = distilling(late=beside(late(steps, rechecks.FIRST_RECHECK - 5)))
    steps.append(job.run.job)
    assert job.run.check("late", job.step).passed
    job.run.keep("late")
    while job.run.kept and job.run.job.steps < 2 * rechecks.FIRST_RECHECK:
        job.step()
    ((ids, reason),) = job.run.unsound
    assert ids == ["late"]
    assert "output error 5%: more than 3%" in reason


def test_a_call_that_fails_under_it_is_repeated_as_written(distilling):
    steps: list[Any] = []
    fails = raising(RuntimeError("no kernel"), lambda: steps[0].steps > 3)
    job = distilling(fragile=beside(fails))
    steps.append(job.run.job)
    job.run.keep("fragile")
    for _ in range(6):
        job.step()
    ((ids, reason),) = job.run.unsound
    assert ids == ["fragile"]
    assert "no kernel" in reason
