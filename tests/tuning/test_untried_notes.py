"""What was not tried is told with its cure: more time, or a longer program."""

from __future__ import annotations

from flatout.knowledge import boosts as known
from flatout.nouns.trial import Measurement, Trial, WhyUntried
from flatout.tuning.trials import Found
from flatout.tuning.tune import WORTH, untried_notes
from flatout_agent import wire

FACTS = wire.JobFacts("2.13.0", "3.11", "linux", "cpu")


def found(**why: WhyUntried) -> Found:
    trials = tuple(Trial((name,), name, why_untried=reason) for name, reason in why.items())
    return Found(FACTS, Measurement(10.0, None, (), ()), trials=trials)


def test_where_the_program_ended_first_no_budget_is_asked_for() -> None:
    assert known.get("compile").promise(FACTS, {}) >= WORTH
    assert untried_notes(found(compile="program_ended")) == [
        "the program ended before compile could be tried: let it train longer"
    ]


def test_where_time_was_short_a_longer_budget_is_asked_for() -> None:
    assert untried_notes(found(compile="no_time")) == [
        "there was no time to try compile: give a longer --budget"
    ]
    assert untried_notes(found(compile="needs_start")) == []
