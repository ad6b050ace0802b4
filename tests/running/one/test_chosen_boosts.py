from dataclasses import replace

import pytest

from flatout.knowledge import boosts as known
from flatout.nouns.errors import UserError
from flatout.nouns.identity import Identity
from flatout.nouns.plan import PlannedBoost
from flatout.running.one import chosen_boosts
from flatout_agent import wire

PLANNED = (
    PlannedBoost("channels-last"),
    PlannedBoost("loader-workers", {"workers": 2}),
    PlannedBoost("bf16-autocast"),
)
HERE = Identity("Linux", None, 2, None)


def ids(boosts: tuple[PlannedBoost, ...]) -> list[str]:
    return [boost.id for boost in boosts]


def test_all_are_taken_in_the_plans_order() -> None:
    assert chosen_boosts.choose(PLANNED) == PLANNED


def test_only_and_skip() -> None:
    assert ids(chosen_boosts.choose(PLANNED, only=["bf16-autocast"])) == ["bf16-autocast"]
    assert ids(chosen_boosts.choose(PLANNED, skip=["bf16-autocast"])) == [
        "channels-last",
        "loader-workers",
    ]
    assert chosen_boosts.choose(PLANNED, only=["bf16-autocast"], skip=["bf16-autocast"]) == ()


def test_a_boost_that_does_not_exist_is_refused_with_the_one_meant() -> None:
    with pytest.raises(UserError) as caught:
        chosen_boosts.choose(PLANNED, only=["chanels-last"])
    assert caught.value.exit_code == 2
    assert "channels-last" in str(caught.value.next_step)
    with pytest.raises(UserError):
        chosen_boosts.choose(PLANNED, skip=["nonsense"])


def test_a_boost_that_the_plan_lacks_cannot_be_the_only_one() -> None:
    with pytest.raises(UserError) as caught:
        chosen_boosts.choose(PLANNED, only=["compile"])
    assert "channels-last" in str(caught.value.next_step)
    assert ids(chosen_boosts.choose(PLANNED, skip=["compile"])) == ids(PLANNED)


def test_two_that_cannot_live_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan edited by hand may have both."""
    every = known.every()
    rivals = {
        "channels-last": frozenset({"bf16-autocast"}),
        "bf16-autocast": frozenset({"channels-last"}),
    }
    changed = tuple(replace(item, conflicts=rivals.get(item.id, frozenset())) for item in every)
    monkeypatch.setattr(known, "every", lambda: changed)
    with pytest.raises(UserError) as caught:
        chosen_boosts.choose(PLANNED)
    assert "cannot be on together" in caught.value.message
    assert "--skip bf16-autocast" in str(caught.value.next_step)
    assert chosen_boosts.choose(PLANNED, skip=["bf16-autocast"])


def test_the_agent_is_told_ids_and_parameters() -> None:
    assert chosen_boosts.orders(PLANNED[1:2]) == (
        wire.BoostOrder("loader-workers", {"workers": 2}),
    )


def test_the_environment_is_what_the_boosts_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[wire.JobFacts] = []

    def environment(
        self: object, facts: wire.JobFacts, params: dict[str, object]
    ) -> dict[str, str]:
        calls.append(facts)
        return {"FROM": ",".join(map(str, params.values()))}

    monkeypatch.setattr(known.KnownBoost, "environment", environment)
    assert chosen_boosts.environment(PLANNED[1:2], None, HERE) == {"FROM": "2"}
    assert (calls[-1].device, calls[-1].cores) == ("cpu", 2)  # a plan written by hand
    job = wire.JobFacts(torch="2.13.0", python="3.11", system="linux", device="cuda")
    chosen_boosts.environment(PLANNED[1:2], job, HERE)
    assert (calls[-1].device, calls[-1].torch) == ("cuda", "2.13.0")
