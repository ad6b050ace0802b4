from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flatout_agent import wire
from flatout_agent.boost import Declined
from flatout_agent.boosts import cpu_threads as boost
from flatout_agent.job import Job
from flatout_agent.live.candidates import LEAST_PROMISE


@pytest.fixture(autouse=True)
def eight_threads_on_eight_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(boost, "usable_cores", lambda: 8)
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


def _job(*loaders: Any) -> tuple[Job, Any]:
    job, model = Job(), torch.nn.Linear(2, 2)
    job.models.append(model)
    for loader in loaders:
        job.loaders.append(loader)
    return job, model


@pytest.mark.parametrize(("wanted", "count"), [(0.5, 4), (0.25, 2), (3, 3), (0.01, 1)])
def test_a_part_of_the_cores_or_a_number(wanted: Any, count: int) -> None:
    job, model = _job()
    applied = boost.apply(job, model, {"threads": wanted})
    assert torch.get_num_threads() == count
    assert applied.engaged() == (True, f"{count} threads instead of 8")
    applied.undo()
    assert torch.get_num_threads() == 8


@pytest.mark.parametrize(
    ("workers", "cores", "ranks", "count"),
    [(2, 8, 1, 6), (0, 2, 1, 2), (0, 8, 2, 4)],
    ids=["cores are left to the workers", "a quota allows fewer", "torchrun sets one thread"],
)
def test_auto(
    workers: int, cores: int, ranks: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boost, "usable_cores", lambda: cores)
    if ranks > 1:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader([1, 2, 3], num_workers=workers)
    job, model = _job(loader)
    boost.apply(job, model, {"threads": "auto"})
    assert torch.get_num_threads() == count


def test_a_second_model_does_not_lose_the_way_back() -> None:
    job, model = _job()
    first = boost.apply(job, model, {"threads": 0.5})
    other = torch.nn.Linear(2, 2)
    job.models.append(other)
    second = boost.apply(job, other, {"threads": 0.5})
    assert second.engaged() == (True, "4 threads")
    second.undo()
    first.undo()
    assert torch.get_num_threads() == 8


def test_the_scripts_own_choice_stays() -> None:
    torch.set_num_threads(3)
    job, model = _job()
    with pytest.raises(Declined, match="chose 3 threads, 8 cores are usable"):
        boost.apply(job, model, {"threads": "auto"})
    assert torch.get_num_threads() == 3


def test_a_choice_made_later_is_seen_and_stays() -> None:
    job, model = _job()
    applied = boost.apply(job, model, {"threads": 0.5})
    torch.set_num_threads(5)
    assert applied.engaged() == (False, "the script has set 5 threads since")
    applied.undo()
    assert torch.get_num_threads() == 5


def test_nothing_to_do_is_declined() -> None:
    job, model = _job()
    with pytest.raises(Declined, match="8 threads already, on 8 usable cores"):
        boost.apply(job, model, {"threads": "auto"})


def test_a_model_on_an_accelerator_is_declined() -> None:
    job, _ = _job()
    with pytest.raises(Declined, match="the model is on meta"):
        boost.apply(job, torch.nn.Linear(2, 2, device="meta"), {"threads": 0.5})


@pytest.mark.parametrize(
    ("cores", "step_s", "products", "tried"),
    [(2, 0.5, 0.6, False), (64, 0.5, 0.6, True), (2, 0.002, 0.6, True), (2, 0.5, 0.1, True)],
)
def test_fewer_threads_are_not_tried_for_large_operations_on_few_cores(
    cores: int, step_s: float, products: float, tried: bool
) -> None:
    facts = wire.JobFacts("2.13", "3.11", "linux", "cpu", cores=cores, threads=cores)
    facts = dataclasses.replace(facts, step_s=step_s, shares={"products": products})
    assert (boost.promise(facts, {"threads": 0.5}) >= LEAST_PROMISE) is tried
