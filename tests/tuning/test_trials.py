"""Throw-away processes one after the other, with a stand-in for the processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.measuring import live
from flatout.measuring.trial import Bench
from flatout.nouns.errors import UserError
from flatout.nouns.observer import Silent
from flatout.nouns.trial import Verdict
from flatout.running.one.command import Command
from flatout.tuning import trials
from flatout.tuning.candidates import Allowance
from flatout_agent import wire

FACTS = wire.JobFacts("2.13.0", "3.11", "linux", "cpu")
Process = Callable[[wire.LiveOrders, tuple[str, ...]], list[wire.Record]]


def summary(*kept: str, settled: bool = True, steps: int = 80) -> wire.LiveSummary:
    orders = tuple(wire.BoostOrder(boost) for boost in kept)
    return wire.LiveSummary(orders, settled, steps, written_ms=100.0, now_ms=50.0, noise=0.02)


def ended(steps: int = 80) -> wire.Ended:
    return wire.Ended("program", steps, 0, 1.0, 0.0)


def decided(boost: str, verdict: str, reason: str = "", gain: float | None = None) -> wire.Decided:
    return wire.Decided(boost, verdict, reason, gain=gain, pairs=4 if gain else 0)


def ended_first(boost: str) -> wire.Decided:
    return wire.Decided(boost, "untried", "it came too late", why_untried="program_ended")


@pytest.fixture
def find(monkeypatch, tmp_path):
    def run(
        *processes: Process,
        budget: float = 600.0,
        choice: Allowance | None = None,
        returncode: int = 0,
    ):
        """returncode: of all processes but the last."""
        remaining = list(processes)
        orders_given: list[wire.LiveOrders] = []

        def stand_in(
            bench, name, boosts, facts, orders, limit_s, live_run, on_record=lambda record: None
        ):
            orders_given.append(orders)
            for record in remaining.pop(0)(orders, tuple(boost.id for boost in boosts)):
                live_run.add(7, record)
                on_record(record)
            error = None if live_run.facts is not None else "exit code 1"
            code = returncode if remaining else 0
            return live.FinishedTuning(live_run, error, code, str(tmp_path / "log"), 1.0)

        monkeypatch.setattr(live, "run", stand_in)
        (tmp_path / "log").write_text("it says why")
        command = Command(("python", "train.py"), None, "python", ("train.py",))
        bench = Bench(command, tmp_path, compile_cache=Path("cache"))
        deadline = time.monotonic() + budget
        return trials.find(bench, choice or Allowance(), Silent(), deadline, None), orders_given

    return run


def test_what_one_process_decides_is_found(find):
    search, orders_given = find(
        lambda orders, on: [
            wire.JobSeen(FACTS),
            summary(settled=False),
            decided("bf16-autocast", "kept", gain=2.0),
            decided("gc-pause", "same", "no difference that matters", gain=1.0),
            summary("bf16-autocast"),
            ended(),
        ]
    )
    assert [boost.id for boost in search.kept] == ["bf16-autocast"]
    assert (search.speedup, search.written.step_ms, search.now_ms) == (2.0, 100.0, 50.0)
    assert search.trials[0].reason == "as written"
    assert {row.tried: row.verdict for row in search.trials[1:3]} == {
        "bf16-autocast": Verdict.KEPT,
        "gc-pause": Verdict.SLOWER,
    }
    assert search.run_steps is None, "it was stopped when all was decided"
    assert search.tried
    assert len(orders_given) == 1


def test_a_short_program_goes_on_where_it_stood(find):
    def second(orders: wire.LiveOrders, on: tuple[str, ...]) -> list[wire.Record]:
        assert on == ("bf16-autocast",)
        assert "allocator" not in orders.settled
        assert (orders.written_s, orders.gain, orders.measured) == (0.1, 2.0, ("bf16-autocast",))
        assert orders.steps == 80, "the length of a whole run is known by now"
        return [
            wire.JobSeen(FACTS),
            decided("bf16-autocast", "kept", "in the plan"),
            decided("allocator", "kept", gain=1.5),
            summary("bf16-autocast", "allocator"),
            ended(),
        ]

    search, orders_given = find(
        lambda orders, on: [
            wire.JobSeen(FACTS),
            wire.BlockRun(1, 4, 100.0),
            decided("bf16-autocast", "kept", gain=1.3),
            ended_first("allocator"),
            summary("bf16-autocast", settled=False),
            ended(),
        ],
        second,
    )
    assert len(orders_given) == 2
    assert [(boost.id, boost.gain) for boost in search.kept] == [
        ("bf16-autocast", 1.3),
        ("allocator", 1.5),
    ]
    rows = [row for row in search.trials if row.tried == "allocator"]
    assert [row.verdict for row in rows] == [Verdict.KEPT], "the row of before is replaced"
    assert search.run_steps == 80


def test_a_program_that_fails_under_boosts_goes_on_without_the_one_at_fault(find):
    def failed(boost: str, verdict: str, why: wire.WhyUntried | None) -> wire.Decided:
        return wire.Decided(boost, verdict, "the program failed under it", why_untried=why)

    def second(orders: wire.LiveOrders, on: tuple[str, ...]) -> list[wire.Record]:
        assert orders.alone
        assert orders.settled == ()
        return [
            decided("allocator", "kept", gain=1.5),
            failed("bf16-autocast", "failed", None),
            summary("allocator", settled=False),
            ended(),
        ]

    def third(orders: wire.LiveOrders, on: tuple[str, ...]) -> list[wire.Record]:
        assert not orders.alone
        assert on == ("allocator",)
        assert "bf16-autocast" in orders.settled
        return [decided("allocator", "kept", "in the plan"), summary("allocator"), ended()]

    first = [
        wire.JobSeen(FACTS),
        failed("bf16-autocast", "untried", "program_failed"),
        failed("allocator", "untried", "program_failed"),
        summary(settled=False),
        ended(),
    ]
    search, _ = find(lambda orders, on: first, second, third, returncode=1)
    assert [boost.id for boost in search.kept] == ["allocator"]
    rows = {row.tried: row.verdict for row in search.trials}
    assert rows["bf16-autocast"] is Verdict.FAILED


def test_a_program_that_fails_by_itself_is_not_begun_again(find):
    first = [
        wire.JobSeen(FACTS),
        decided("gc-pause", "same", "no difference that matters", gain=1.0),
        ended_first("allocator"),
        summary(settled=False),
        ended(),
    ]
    _, orders_given = find(lambda orders, on: first, lambda orders, on: first, returncode=1)
    assert len(orders_given) == 1


def test_two_processes_that_decide_nothing_are_the_last(find):
    nothing = [
        wire.JobSeen(FACTS),
        wire.BlockRun(1, 4, 100.0),
        ended_first("bf16-autocast"),
        summary(settled=False),
        ended(),
    ]
    search, orders_given = find(lambda orders, on: nothing, lambda orders, on: nothing)
    assert len(orders_given) == 2
    assert not search.tried, "nothing was tried fairly"
    assert search.kept == ()


def test_what_a_killed_process_had_not_decided_has_its_row(find):
    """As in a compilation that takes longer than there is time for."""
    search, _ = find(
        lambda orders, on: [
            wire.JobSeen(FACTS),
            decided("bf16-autocast", "same", "no difference", gain=1.0),
            summary(settled=False),
        ],
        budget=0.5,
    )
    rows = {row.tried: row for row in search.trials}
    assert rows["compile"].left
    assert rows["compile"].reason == "the time was up before it could be decided"
    assert not rows["bf16-autocast"].left


def test_what_was_refused_has_its_row(find):
    search, orders_given = find(
        lambda orders, on: [wire.JobSeen(FACTS), summary(), ended()],
        choice=Allowance(skip=("tf32",)),
    )
    row = next(row for row in search.trials if row.tried == "tf32")
    assert row.reason == "left out by --skip"
    assert "tf32" not in orders_given[0].allowed


def test_a_program_that_gives_no_measurement_is_an_error(find):
    with pytest.raises(UserError, match=r"cannot be measured|took no optimizer step"):
        find(lambda orders, on: [wire.TorchSeen("2.13.0"), ended(0)])


def test_an_interrupt_keeps_what_was_told(find):
    def interrupted(orders: wire.LiveOrders, on: tuple[str, ...]):
        yield wire.JobSeen(FACTS)
        yield summary(settled=False)
        yield decided("bf16-autocast", "kept", gain=2.0)
        raise KeyboardInterrupt

    search, _ = find(interrupted)
    assert search.interrupted
    assert [boost.id for boost in search.kept] == ["bf16-autocast"]


def test_an_interrupt_before_the_first_measurement_ends_it(find):
    def interrupted(orders: wire.LiveOrders, on: tuple[str, ...]):
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        find(interrupted)
