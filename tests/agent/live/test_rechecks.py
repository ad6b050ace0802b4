"""Later checks of what is kept: what became wrong goes, and the weights go back to a sound step."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from flatout_agent.live import rechecks
from planted import assert_unharmed, late, plain, planted, times

pytestmark = pytest.mark.usefixtures("one_thread")


def becomes_wrong(program: Any, after: int) -> Any:
    job: list[Any] = []
    run = program(late=planted(late(job, after)), right=planted(times(1.0)))
    job.append(run.job)
    run.keep("right", "late")
    return run


def test_one_that_becomes_wrong_is_taken_out_and_its_training_undone(program):
    run = becomes_wrong(program, 200)
    while run.job.steps < 330 and not run.unsound:
        run.step()
    ((ids, reason),) = run.unsound
    assert ids == ["late"], "the other one stays"
    assert reason.startswith("the guard no longer holds: gradient error")
    last = run.job.steps
    assert 300 <= last < 310
    (taken,) = {step for step in range(100, 110) if f"the weights of steps {step + 1} to" in reason}
    assert reason.endswith(
        f"; the weights of steps {taken + 1} to {last} were trained under it, so the weights and"
        f" the optimizer are those of step {taken} again"
    )
    assert [item.id for item in run.kept] == ["right"]
    assert list(run.booster.applied) == ["right"]
    _, weights = plain(taken)
    assert all(map(torch.equal, weights, run.model.parameters())), "the look's step was sound"
    again = [torch.zeros_like(weight) for weight in weights]
    assert any(
        not torch.equal(run.optimizer.state[p]["momentum_buffer"], zero)
        for p, zero in zip(run.model.parameters(), again, strict=True)
    )


def test_without_room_for_a_copy_the_steps_are_only_named(program, monkeypatch):
    monkeypatch.setattr("flatout_agent.live.snapshot.spare_memory", lambda: 1000)
    run = becomes_wrong(program, 150)
    before: list[torch.Tensor] = []
    while run.job.steps < 330 and not run.unsound:
        before = [p.detach().clone() for p in run.model.parameters()]
        run.step()
    ((_, reason),) = run.unsound
    assert reason.endswith("were trained under it")
    with torch.no_grad():
        pairs = zip(run.model.parameters(), before, strict=True)
        moved = [float((now - was).abs().max()) for now, was in pairs]
    assert max(moved) < 0.1, "one step of training, and no way back"


def test_looks_leave_training_as_it_was(program):
    run = program(right=planted(times(1.0)))
    run.keep("right")
    for _ in range(320):
        run.step()
    assert run.unsound == []
    assert run.rechecks.sound_step > 300
    assert_unharmed(run)


@pytest.mark.slow
def test_looks_become_rarer_up_to_a_limit(program, monkeypatch):
    monkeypatch.setattr(rechecks, "FARTHEST", 200)
    run = program(right=planted(times(1.0)))
    run.keep("right")
    sound = []
    for _ in range(800):
        run.step()
        if run.rechecks.sound_step not in sound:
            sound.append(run.rechecks.sound_step)
    gaps = [b - a for a, b in itertools.pairwise(sound)]
    assert [round(gap, -2) for gap in gaps] == [100, 200, 200, 200]


def test_a_look_that_finds_nothing_to_compare_ends(program):
    run = program(right=planted(times(1.0)))
    run.keep("right")
    run.model[0].register_forward_hook(lambda module, args, output: output * 1.5)
    for _ in range(130):
        run.step()
    assert not run.checks._recorded.purpose
    assert run.unsound == []
    assert run.rechecks.sound_step == 0, "nothing is known to be sound"


def test_ranks_take_out_the_same_at_the_same_step(program):
    """What another rank finds wrong goes here too, with the questions in the same order."""
    run = program(right=planted(times(1.0)), other=planted(times(1.0)))
    asked: list[str] = []

    def agree(value: float, how: str) -> float:
        asked.append(how)
        return 1.0 if asked[-2:] == ["max", "max"] else value  # `other`, found by another rank

    run.rechecks._agree = agree
    run.keep("right", "other")
    while run.job.steps < 120 and not run.unsound:
        run.step()
    ((ids, reason),) = run.unsound
    assert ids == ["other"]
    assert reason.startswith("the guard no longer holds: on another rank")
