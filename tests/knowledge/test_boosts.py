"""The host's door to the boosts."""

from __future__ import annotations

import types

import pytest

from flatout.knowledge import boosts
from flatout_agent import boosts as agent
from flatout_agent.boost import Boost, Moment, Risk
from flatout_agent.wire import JobFacts

FACTS = JobFacts(torch="2.13.0", python="3.11.2", system="linux", device="cpu", cores=4)


def test_every_boost_of_the_agent_is_known() -> None:
    assert [boost.id for boost in boosts.every()] == agent.names() == list(boosts.ids())


def test_a_boost_says_what_its_file_says() -> None:
    boost = boosts.get("bf16-autocast")
    module = agent.load("bf16-autocast")
    assert boost.title == "Run the model in bfloat16 where that is safe, and the rest in float32"
    assert "## What it may change" in boost.page
    assert boost.risk == "rounding"
    assert boost.moment == "model"
    assert boost.applies(FACTS) == module.applies(FACTS, {})
    assert boost.promise(FACTS) == module.promise(FACTS, {})
    assert 'torch.autocast("cpu"' in boost.by_hand(FACTS)
    assert boost.environment(FACTS) == {}


def test_unknown_boost() -> None:
    with pytest.raises(KeyError):
        boosts.get("warp-drive")
    assert boosts.nearest("channel_last")[0] == "channels-last"
    assert "bf16-autocast" in boosts.nearest("bf16")
    assert boosts.nearest("zzzzzzz") == ()


def test_conflicts_hold_both_ways() -> None:
    for boost in boosts.every():
        assert set(agent.load(boost.id).BOOST.conflicts) <= boost.conflicts
        for other in boost.conflicts & set(boosts.ids()):
            assert boost.id in boosts.get(other).conflicts


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> boosts.KnownBoost:
    """A boost with parameters and variables of its own."""
    module = types.SimpleNamespace(
        __doc__="Title.\n\n## What it does\n",
        BOOST=Boost(
            since="0.1.0",
            risk=Risk.EXACT,
            moment=Moment.START,
            params={"mode": ("low", "high"), "count": (2,)},
        ),
        by_hand=lambda facts, params: f"use({params['mode']!r}, {params['count']})",
        environment=lambda facts, params: {"MODE": params["mode"]},
    )
    monkeypatch.setattr(agent, "names", lambda: ["made-up"])
    monkeypatch.setattr(agent, "load", lambda boost_id: module)
    boosts.every.cache_clear()
    found = boosts.get("made-up")
    boosts.every.cache_clear()
    return found


def test_parameters_that_are_not_given_have_their_default(made_up: boosts.KnownBoost) -> None:
    assert made_up.defaults == {"mode": "low", "count": 2}
    assert made_up.by_hand(FACTS, {"count": 5}) == "use('low', 5)"
    assert made_up.environment(FACTS, {"mode": "high"}) == {"MODE": "high"}
