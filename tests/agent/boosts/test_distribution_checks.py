"""The same numbers, the same errors within sixteen steps, and the switch is put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Normal

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import distribution_checks as boost
from flatout_agent.job import Job

NAN = torch.tensor([0.0, float("nan")])
MODEL = nn.Linear(2, 2)


@pytest.fixture(autouse=True)
def switch_as_found() -> Iterator[None]:
    make = Distribution.__init__
    yield
    assert Distribution.__init__ is make
    assert Distribution._validate_args is True


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def applied(job: Job) -> Iterator[Applied]:
    applied = boost.apply(job, MODEL, {})
    yield applied
    applied.undo()


def steps(job: Job, count: int) -> None:
    for _ in range(count):
        for callback in job.step_callbacks:
            callback()


def told(applied: Applied) -> tuple[bool, str]:
    found = applied.engaged()
    assert found is not None
    return found


def losses(job: Job) -> list[float]:
    """Of a small policy that is trained with two kinds of distributions."""
    torch.manual_seed(0)
    policy = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    values = []
    for _ in range(20):
        mean, logits = policy(torch.randn(8, 3)).split(2, 1)
        action: Any = Normal(mean, 1.0)
        choice: Any = Categorical(logits=logits)
        loss = -(action.log_prob(action.sample()).sum(1) * choice.entropy()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps(job, 1)
        values.append(loss.item())
    return values


def test_the_same_numbers_without_most_of_the_checks(job: Job, monkeypatch: Any) -> None:
    checked = []
    check = Distribution._validate_sample

    def counted(*args: Any) -> None:
        checked.append(args)
        check(*args)

    monkeypatch.setattr(Distribution, "_validate_sample", counted)
    plain = losses(job)
    assert len(checked) == 20
    applied = boost.apply(job, MODEL, {})
    checked.clear()
    assert losses(job) == plain
    assert len(checked) == 1
    assert told(applied) == (True, "38 distributions made without checks")
    applied.undo()


def test_an_error_comes_within_sixteen_steps(job: Job, applied: Applied) -> None:
    for _ in range(boost.CHECK_EVERY):
        Normal(NAN, 1.0)
        steps(job, 1)
    with pytest.raises(ValueError, match="Expected parameter loc"):
        Normal(NAN, 1.0)


def test_checks_that_were_asked_for_stay(applied: Applied) -> None:
    with pytest.raises(ValueError, match="Expected parameter loc"):
        Normal(NAN, 1.0, validate_args=True)


def test_undone_it_checks_each_time(job: Job) -> None:
    boost.apply(job, MODEL, {}).undo()
    with pytest.raises(ValueError, match="Expected parameter loc"):
        Normal(NAN, 1.0)
    assert not job.step_callbacks


def test_what_the_program_sets_stands(job: Job, applied: Applied) -> None:
    Distribution.set_default_validate_args(True)
    steps(job, 3)
    with pytest.raises(ValueError, match="Expected parameter loc"):
        Normal(NAN, 1.0)
    assert told(applied) == (False, "the program sets the checks itself")


def test_declined_where_the_checks_are_off(job: Job) -> None:
    Distribution.set_default_validate_args(False)
    with pytest.raises(Declined, match="off already"):
        boost.apply(job, MODEL, {})
    Distribution.set_default_validate_args(True)


def test_not_engaged_without_distributions(job: Job, applied: Applied) -> None:
    steps(job, 20)
    assert told(applied) == (False, "no distribution was made")
