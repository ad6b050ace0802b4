"""Calls without gradients in a run that is tuned: which of them spoil what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from flatout_agent import wire
from flatout_agent.booster import Booster
from flatout_agent.job import Job
from flatout_agent.live.run import LiveWatch
from flatout_agent.recorder import Recorder
from flatout_agent.watch.step_calls import STEPS

STEPS_TAKEN = 2 * STEPS


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[LiveWatch]:
    job, recorder = Job(), Recorder(str(tmp_path))
    booster = Booster(job, (), recorder)
    watching = LiveWatch(job, booster, recorder, wire.LiveOrders(allowed=()))
    yield watching
    watching._unwatch_saving()
    recorder._file.close()


def clean_steps(
    watch: LiveWatch, inputs: Callable[[int], torch.Tensor], epoch_each_step: bool = False
) -> list[bool]:
    """Of each step with one call without gradients: whether it may be measured."""
    model = torch.nn.Linear(2, 2)
    call = watch._watched(model, 0, model.forward)
    clean = []
    for step in range(STEPS_TAKEN):
        watch._clean = True
        if epoch_each_step:
            watch._epoch_began = True
        with torch.no_grad():
            call(inputs(step))
        clean.append(watch._clean)
        watch.job.steps += 1
    return clean


def acting(step: int) -> torch.Tensor:
    return torch.full((3, 2), float(step))


def test_a_policy_that_acts_in_each_step_belongs_to_it(watch: LiveWatch) -> None:
    assert clean_steps(watch, acting) == [False] * (STEPS - 1) + [True] * (STEPS + 1)
    assert len(watch._evaluations.means_s) <= 1


def test_an_evaluation_does_not(watch: LiveWatch) -> None:
    assert not any(clean_steps(watch, lambda step: torch.ones(3, 2)))


def test_nor_what_a_loader_of_its_own_feeds(watch: LiveWatch) -> None:
    assert not any(clean_steps(watch, acting, epoch_each_step=True))
