"""Notes of a search: what was not tried with its cure, and step times that are far apart."""

from __future__ import annotations

import dataclasses

from flatout.knowledge import boosts as known
from flatout.measuring.live import AS_WRITTEN
from flatout.nouns.trial import Measurement, Trial, Verdict, WhyUntried
from flatout.tuning.trials import Found
from flatout.tuning.tune import WORTH, drift_note, untried_notes
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


def test_figures_of_the_program_as_written_that_are_far_apart_are_named() -> None:
    first = Measurement(790.0, None, (), ())
    row = Trial((), None, verdict=Verdict.KEPT, reason=AS_WRITTEN, measured=first)
    search = Found(FACTS, Measurement(1540.0, None, (), ()), trials=(row,))
    (note,) = drift_note(search, [4300.0, 4306.0])
    assert note.startswith(
        "the machine's speed changed: as written 790 ms at first, 1540 ms after the search,"
        " 4303 ms in A/B runs; "
    )
    assert drift_note(Found(FACTS, first, trials=(row,)), [800.0]) == []


def test_a_step_of_several_micro_steps_takes_all_of_their_time() -> None:
    search = Found(dataclasses.replace(FACTS, micro_steps=4.0), Measurement(250.0, None, (), ()))
    assert search.step_s == 0.25
    assert dataclasses.replace(search, micro_steps=True).step_s == 1.0
