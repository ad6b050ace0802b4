"""Notes of a search: what was not tried, with its cure; the time between steps."""

from __future__ import annotations

import dataclasses

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


def test_what_a_longer_program_would_not_change_has_no_note() -> None:
    assert untried_notes(found(compile="no_time")) == []
    assert untried_notes(found(compile="needs_start")) == []


def test_a_step_of_several_micro_steps_takes_all_of_their_time() -> None:
    search = Found(dataclasses.replace(FACTS, micro_steps=4.0), Measurement(250.0, None, (), ()))
    assert search.step_s == 0.25
    assert dataclasses.replace(search, micro_steps=True).step_s == 1.0
