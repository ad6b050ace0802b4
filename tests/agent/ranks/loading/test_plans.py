"""Whether a loader is shared is decided by what was measured, of all ranks the worst."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.utils.data import DataLoader

from flatout_agent.ranks.loading.plans import CHECK_EVERY, PROOFS, UNDECIDED, LoadingPlan, Plans


class Group:
    """This rank's figures, and another's."""

    size = 2

    def __init__(self, *other: float) -> None:
        self.other = torch.tensor(other, dtype=torch.float64)

    def max_(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.maximum(tensor, self.other) if len(self.other) else tensor


def looked(workers: int = 0, exchange_s: float = 0.001) -> LoadingPlan:
    plan = LoadingPlan("Faces", workers)
    for number in range(PROOFS):
        assert plan.kind(0) == "prove"
        plan.proofs += 1
        plan.exchanged(1.0 if number == 0 else exchange_s)
    assert plan.kind(0) == "whole"
    return plan


def told(plan: LoadingPlan, waits: list[float], group: Any) -> str:
    for position, wait_s in enumerate(waits):
        plan.waited(wait_s, position, group)
    return plan.status


def test_shared_where_reading_takes_longer() -> None:
    assert told(looked(), [0.01, 0.01], Group()) == "shared"
    cheap = looked()
    assert told(cheap, [0.001, 0.001], Group()) == "all"
    assert cheap.seen().reason == "a batch is waited for 1.00 ms, and sharing it takes 1.00 ms"


def test_the_slowest_exchange_and_the_shortest_wait_count() -> None:
    assert told(looked(), [0.01, 0.01], Group(-0.001, 0.0)) == "all"
    assert told(looked(), [0.01, 0.01], Group(-0.02, 0.02)) == "all"


def test_workers_that_have_just_begun_are_not_timed() -> None:
    waits = [1.0] * 4 + [0.0] * 3
    plan = looked(workers=4)
    assert told(plan, waits, Group()) == "looking"
    assert plan.seen().reason == UNDECIDED
    assert told(plan, [9.0] * 4 + [0.0], Group()) == "all"


def test_a_trial_knows_when_it_is_decided() -> None:
    assert looked().looks == PROOFS + 2
    plan = looked(workers=4)
    assert plan.looks == 8
    assert told(plan, [0.01] * (plan.looks - 1), Group()) == "looking"
    plan.waited(0.01, plan.looks - 1, Group())  # type: ignore[arg-type]
    assert plan.status == "shared"
    assert LoadingPlan("Stream", 4, "it is not a map-style dataset").looks == 0


def test_whole_batches_in_between() -> None:
    plan = looked()
    told(plan, [0.01, 0.01], Group())
    kinds = [plan.kind(0) for _ in range(2 * CHECK_EVERY)]
    assert kinds.count("prove") == 2
    assert set(kinds) == {"own", "prove"}
    plan.exchanges_s = [0.001]
    plan.waited_again(0.01, Group())  # type: ignore[arg-type]
    assert plan.status == "shared"
    plan.waited_again(0.001, Group())  # type: ignore[arg-type]
    assert plan.status == "all"
    assert plan.kind(0) == "whole"


def test_the_first_reason_stays() -> None:
    plan = LoadingPlan("Faces", 0)
    plan.leave("it is so")
    plan.leave("because")
    assert plan.seen().reason == "it is so"


class Rows(list[int]):
    pass


def test_loaders_over_the_same_data_have_one_plan() -> None:
    plans, data = Plans(), Rows(range(8))
    loader = DataLoader(data, batch_size=4)  # type: ignore[arg-type]
    assert plans.find(loader) is None
    plan = plans.add(loader, LoadingPlan("Rows", 0))
    assert plans.find(DataLoader(data, batch_size=2)) is plan  # type: ignore[arg-type]
    assert plans.find(DataLoader(data, num_workers=1)) is None  # type: ignore[arg-type]
    assert plans.find(DataLoader(data, collate_fn=list)) is None  # type: ignore[arg-type]
    assert plans.find(DataLoader(Rows(range(8)))) is None  # type: ignore[arg-type]


def test_data_that_allows_no_weak_reference() -> None:
    plans, data = Plans(), list(range(8))
    loader = DataLoader(data, batch_size=4)  # type: ignore[arg-type]
    plan = plans.add(loader, LoadingPlan("list", 0))
    assert plans.find(loader) is plan
    other = DataLoader(data, batch_size=4)  # type: ignore[arg-type]
    del loader
    gc.collect()
    assert plans.find(other) is None
