"""The life of an alert: pending, firing, resolved; one episode is one alert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.finding import Cure, Severity
from flatout.watching.alert_book import CLEARS_S, KEPT_S, MOST_ALERTS, AlertBook
from flatout.watching.rules import Breach, JobHistory, Rule, View

CURE = Cure("Do it.")


class Planned:
    """A rule that answers what it is told."""

    RULE = Rule("TEST001", Severity.WARNING, "0.2.0")

    def __init__(self, answers: Sequence[Breach] = (), fails: bool = False) -> None:
        self.__name__ = "flatout.watching.alerts.test001_planned_rule"
        self.answers, self.fails = list(answers), fails

    def check(self, view: View) -> Iterator[Breach]:
        if self.fails:
            raise RuntimeError("broken")
        yield from self.answers


def breach(**more: Any) -> Breach:
    return Breach("it holds", "evidence", CURE, **more)


def states(book: AlertBook, now_s: float, job: JobHistory | None = None) -> list[str]:
    return [alert.state for alert in book.update([View(now_s, "node", job=job)])]


HOLDS, WAITS, KEEPS = breach(), breach(hold_s=5.0), breach(fires=False)
STORIES: dict[str, list[tuple[float, Breach | None, list[str]]]] = {
    "it waits as long as its rule asks": [
        (100.0, WAITS, ["pending"]),
        (104.0, WAITS, ["pending"]),
        (105.0, WAITS, ["firing"]),
    ],
    "it is resolved a while after the rule has held last": [
        (100.0, HOLDS, ["firing"]),
        (100.0 + CLEARS_S - 1, None, ["firing"]),
        (100.0 + CLEARS_S, None, ["resolved"]),
        (101.0 + CLEARS_S + KEPT_S, None, []),
    ],
    "between the thresholds it goes on and none begins": [
        (100.0, KEEPS, []),
        (101.0, HOLDS, ["firing"]),
        (200.0, KEEPS, ["firing"]),
    ],
    "the clock may be put back while it fires": [
        (10_000.0, HOLDS, ["firing"]),
        (100.0, None, ["firing"]),
        (111.0, None, ["resolved"]),
    ],
    "the clock may be put back while it waits": [
        (10_000.0, WAITS, ["pending"]),
        (100.0, WAITS, ["pending"]),
        (105.0, WAITS, ["firing"]),
    ],
    "time that nobody watched, as the machine slept, does not count": [
        (100.0, breach(hold_s=60.0), ["pending"]),
        (3700.0, breach(hold_s=60.0), ["pending"]),
    ],
}
"""When the book is asked, what the rule answers, and the states of all alerts then."""


@pytest.mark.parametrize("name", STORIES)
def test_the_life_of_an_alert(name: str) -> None:
    rule = Planned()
    book = AlertBook([rule])
    for now_s, answer, told in STORIES[name]:
        rule.answers = [answer] if answer is not None else []
        assert states(book, now_s) == told, now_s


def test_since_when_where_the_rule_knows_it() -> None:
    """A monitor that is opened later does not say that it began just now."""
    rule = Planned([breach(since_s=40.0)])
    book = AlertBook([rule])
    states(book, 100.0)
    rule.answers = [breach(since_s=45.0)]
    states(book, 101.0)
    (alert,) = book.alerts
    assert (alert.since_s, alert.fired_s, alert.id) == (40.0, 100.0, "planned-rule")


def test_a_rule_that_is_asked_seldom_holds_meanwhile_and_forgets_a_job() -> None:
    rule = Planned([breach(hold_s=12.0)])
    rule.RULE = replace(Planned.RULE, every_s=10.0)
    book, job = AlertBook([rule]), JobHistory("7-1", 7, 0.0)
    assert states(book, 100.0, job) == ["pending"]
    rule.answers = []
    assert [states(book, 100.0 + later, job) for later in (1, 9)] == [["pending"]] * 2
    rule.answers = [breach(hold_s=12.0)]
    assert [states(book, 109.0 + later, job) for later in (1, 2, 3)] == [
        ["pending"],
        ["pending"],
        ["firing"],
    ]
    rule.answers = []
    assert states(book, 119.0, job) == ["firing"]
    assert states(book, 128.0, job) == ["firing"]
    assert states(book, 129.0, job) == ["resolved"]
    rule.answers = [breach()]
    assert states(book, 130.0, replace(job, id="8-1")) == ["firing"]


def test_a_rule_that_fails_is_left_out_and_named() -> None:
    broken, whole = Planned(fails=True), Planned([breach()])
    book = AlertBook([broken, whole])
    assert states(book, 1.0) == ["firing"]
    assert "TEST001" in book.notes[0]
    states(book, 2.0)
    assert len(book.notes) == 1


def test_what_a_job_died_of_stays_and_goes_with_the_job() -> None:
    rule = Planned([breach()])
    book, job = AlertBook([rule]), JobHistory("7-1", 7, 0.0)
    assert states(book, 100.0, job) == ["firing"]
    rule.answers, job.ended_s = [], 101.0
    assert states(book, 500.0, job) == ["firing"]
    assert states(book, 501.0) == []


def test_the_worst_come_first_and_there_are_not_too_many() -> None:
    answers = [breach(subject=str(number), severity=Severity.NOTE) for number in range(500)]
    book = AlertBook([Planned(answers), Planned([breach(subject="x", severity=Severity.ERROR)])])
    alerts = book.update([View(1.0, "node")])
    assert len(alerts) <= MOST_ALERTS
    book = AlertBook(
        [Planned(answers[:5]), Planned([breach(subject="x", severity=Severity.ERROR)])]
    )
    assert book.update([View(1.0, "node")])[0].severity is Severity.ERROR


@given(
    st.lists(
        st.tuples(st.floats(0.1, 100.0), st.sampled_from(["none", "holds", "fires"])), max_size=60
    )
)
def test_an_alert_begins_only_where_its_rule_fires(story: list[tuple[float, str]]) -> None:
    rule, now_s, fired = Planned(), 1000.0, False
    book = AlertBook([rule])
    for seconds, answer in story:
        now_s += seconds
        rule.answers = [] if answer == "none" else [breach(fires=answer == "fires")]
        fired = fired or answer == "fires"
        alerts = book.update([View(now_s, "node")])
        assert fired or not alerts
        assert sum(alert.state == "firing" for alert in alerts) <= 1
        if answer == "fires":
            assert alerts[0].state == "firing"
