"""Boosts that have been reported as engaged are still taken back where that is to follow."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from flatout_agent import wire
from flatout_agent.apply import booster as boosters
from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.job import Job
from flatout_agent.tell.recorder import Recorder


@pytest.mark.parametrize("follows", [True, False])
def test_what_was_reported_is_undone_last_first(
    follows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: list[str] = []
    taken = {"first": True, "second": True, "third": False}

    def module(name: str) -> Any:
        def apply(job: Job, target: Any, params: Any) -> Applied:
            return Applied(lambda: undone.append(name), lambda: (taken[name], ""))

        boost = Boost("0", Risk.EXACT, Moment.START)
        return types.SimpleNamespace(BOOST=boost, apply=apply)

    monkeypatch.setattr(boosters, "load", module)
    recorder = Recorder(str(tmp_path))
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
    recorder._file.close()
