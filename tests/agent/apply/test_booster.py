"""What became of a boost is known across switching it off and on."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from flatout_agent import wire
from flatout_agent.apply import booster as boosters
from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.job import Job
from flatout_agent.tell.recorder import Recorder


def dropping(recorder: Recorder, *orders: wire.BoostOrder) -> tuple[torch.nn.Module, Booster]:
    """A model that drops, and a booster for it."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Dropout(0.5))
    job = Job()
    job.models.append(model)
    return model, Booster(job, orders, recorder)


def test_what_took_hold_before_a_switch_is_not_idle_right_after_it(recorder: Recorder) -> None:
    order = wire.BoostOrder("fast-dropout")
    model, booster = dropping(recorder)
    assert booster.on(order) is None
    assert booster.idle("fast-dropout") is not None
    booster.off("fast-dropout")
    booster.on(order)
    assert booster.idle("fast-dropout") is not None, "it has drawn no mask yet"
    model(torch.randn(64, 64))
    assert booster.idle("fast-dropout") is None
    booster.off("fast-dropout")
    booster.on(order)
    assert booster.idle("fast-dropout") is None, "no step was taken since"
    booster.on(wire.BoostOrder("fast-dropout", {"other": 1}))
    assert [order.params for order, _ in booster.orders] == [{"other": 1}], "not beside the first"
    assert len(booster.applied["fast-dropout"]) == 1
    assert booster.idle("fast-dropout") is not None, "with other parameters it is another"
    booster.off("fast-dropout")
    assert booster.idle("fast-dropout") is not None, "it has not drawn a mask until now"


def test_what_the_program_was_started_with_stays_what_it_was(recorder: Recorder) -> None:
    """A program that is begun again starts with what was kept: switched off and on, that is on."""
    order = wire.BoostOrder("fast-dropout")
    model, booster = dropping(recorder, order)
    booster.at(Moment.MODEL, model)
    model(torch.randn(64, 64))
    booster.off("fast-dropout")
    booster.on(order)
    assert booster.idle("fast-dropout") is None, "no step was taken since"
    booster.off("fast-dropout")


@pytest.mark.parametrize("follows", [True, False])
def test_what_was_reported_is_undone_last_first(
    follows: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: list[str] = []
    taken = {"first": True, "second": True, "third": False}

    def module(name: str) -> Any:
        def apply(job: Job, target: Any, params: Any) -> Applied:
            return Applied(lambda: undone.append(name), lambda: (taken[name], ""))

        boost = Boost("0", Risk.EXACT, Moment.START)
        return types.SimpleNamespace(BOOST=boost, apply=apply)

    monkeypatch.setattr(boosters, "load", module)
    booster = Booster(Job(), tuple(map(wire.BoostOrder, taken)), recorder)
    booster.undo_follows = follows
    booster.at(Moment.START, None)
    booster.report(final=False)  # in the midst of a run
    assert list(booster.applied) == ["third"]
    booster.report()
    booster.undo()
    # Where nothing follows, what took hold was let go of: models may be freed.
    assert undone == (["third", "second", "first"] if follows else ["third"])
    booster.undo()
    assert len(undone) == (3 if follows else 1)
