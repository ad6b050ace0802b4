"""What is made of the records of a live tuning."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flatout.measuring import live
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Verdict
from flatout_agent import wire

FACTS = wire.JobFacts("2.13.0", "3.11", "linux", "cpu", wait_share=0.2)
KEPT = wire.Decided(
    "bf16-autocast", "kept", "gradient error 1 % of batch noise", gain=2.0, low=1.9, high=2.1,
    pairs=4, step=60, cost_s=1.0, step_ms=50.0, gradient_error=0.01, batch_noise=1.0,
)  # fmt: skip


def run(*records: wire.Record, pid: int = 7) -> live.LiveRun:
    return live.of((pid, record) for record in records)


def summary(*boosts: str, settled: bool = True) -> wire.LiveSummary:
    orders = tuple(wire.BoostOrder(boost) for boost in boosts)
    return wire.LiveSummary(orders, settled, 100, written_ms=100.0, now_ms=50.0, noise=0.02)


def test_decisions_become_rows_that_know_what_was_on() -> None:
    declined = wire.Decided("tf32", "declined", "TF32 needs an NVIDIA GPU")
    slower = wire.Decided("gc-pause", "slower", "slower", gain=0.9, low=0.8, high=0.99, pairs=5)
    first, second, third = live.rows(run(declined, KEPT, slower))
    assert (first.tried, first.verdict) == ("tf32", Verdict.SKIPPED)
    assert (second.verdict, second.gain, second.interval) == (Verdict.KEPT, 2.0, (1.9, 2.1))
    assert second.guard.passed
    assert third.boosts == ("bf16-autocast", "gc-pause")
    assert (third.verdict, third.pairs) == (Verdict.SLOWER, 5)


BEFORE = (PlannedBoost("channels-last", {}, 1.3, "exact"),)
DROPPED = wire.Decided("bf16-autocast", "dropped", "the guard no longer holds")
AGAIN = wire.Decided("channels-last", "kept", "in the plan")
TWO = wire.Decided("loader-workers", "kept", params={"workers": 2}, gain=1.2)
FOUR = wire.Decided("loader-workers", "kept", params={"workers": 4}, gain=1.1)
BF16 = ("bf16-autocast", {}, 2.0, "rounding")


@pytest.mark.parametrize(
    ("records", "before", "planned"),
    [
        ([KEPT], (), [BF16]),  # killed without a last summary: what was decided counts
        ([KEPT, DROPPED], (), []),
        ([TWO, FOUR], (), [("loader-workers", {"workers": 4}, 1.1, "exact")]),
        (
            [AGAIN, KEPT, summary("channels-last", "bf16-autocast")],
            BEFORE,
            [("channels-last", {}, 1.3, "exact"), BF16],
        ),
        ([KEPT, summary("bf16-autocast")], BEFORE, [BF16]),  # a plan that no longer holds
    ],
)
def test_what_is_in_the_plan(
    records: list[wire.Record], before: tuple[PlannedBoost, ...], planned: list[tuple[object, ...]]
) -> None:
    boosts = live.planned(run(*records), before)
    assert [(boost.id, boost.params, boost.gain, boost.risk) for boost in boosts] == planned


def test_only_the_process_that_decides_counts() -> None:
    other = wire.Decided("gc-pause", "kept", gain=1.5)
    live_run = live.of([(7, KEPT), (8, other), (7, summary("bf16-autocast"))])
    assert [decided.id for decided in live_run.decisions] == ["bf16-autocast"]
    assert live_run.speedup == 2.0


def test_the_program_as_written_is_known_from_its_own_blocks() -> None:
    blocks = [wire.BlockRun(1, 5, 101.0), wire.BlockRun(6, 5, 51.0, ("bf16-autocast",))]
    live_run = run(wire.JobSeen(FACTS), *blocks, summary("bf16-autocast"))
    written = live.written(run(*blocks, wire.JobSeen(FACTS), summary("bf16-autocast")))
    assert (written.step_ms, written.steps_ms, written.wait_share) == (100.0, (101.0,), 0.2)
    assert live_run.facts == FACTS
    assert live.written(run(*blocks)) is None


def test_the_guard_of_the_whole_plan() -> None:
    record = wire.LiveSummary(
        (), True, 1, guard="gradient error 2 %", guard_passed=True, gradient_error=0.02
    )
    guard = live.guard(run(record))
    assert (guard.passed, guard.gradient_compared, guard.gradient_error) == (True, True, 0.02)
    assert live.guard(run(summary())) is None


def test_all_steps_are_counted_not_only_those_that_are_told_one_by_one() -> None:
    taken_steps = [wire.StepTaken(index, "warmup", 0.0) for index in range(8)]
    program = SimpleNamespace(log_tail=lambda lines: [])

    def error(*records: wire.Record) -> str | None:
        return live._error(run(*taken_steps, *records), program, False, 9.0, 0)  # type: ignore[arg-type]

    assert error() == "the program ended by itself after 8 steps: too few to measure"
    ended = wire.Ended("", 40, 0, 1.0, 0.0)
    whole = wire.LiveSummary((), False, 40)
    assert error(whole, ended) == "the program ended by itself after 40 steps: too few to measure"


TOGETHER = ("bf16-autocast", "gc-pause")


def together(boost: str) -> wire.Decided:
    return wire.Decided(boost, "kept", "sound", gain=2.0, low=1.8, high=2.2, pairs=1,
                        step_ms=50.0, together=TOGETHER)  # fmt: skip


def test_what_was_kept_together_has_a_row_of_its_own() -> None:
    whole, first, second = live.rows(run(*map(together, TOGETHER)))
    assert (whole.tried, whole.boosts, whole.gain) == (None, TOGETHER, 2.0)
    assert whole.reason.startswith("bf16-autocast, gc-pause; ")
    assert [(row.tried, row.gain, row.verdict) for row in (first, second)] == [
        ("bf16-autocast", None, Verdict.KEPT),
        ("gc-pause", None, Verdict.KEPT),
    ]


def test_a_member_that_was_compared_alone_later_has_its_own_gain() -> None:
    alone = wire.Decided("bf16-autocast", "kept", "beside all others", gain=1.9, pairs=2)
    live_run = run(*map(together, TOGETHER), alone, summary(*TOGETHER))
    assert {boost.id: boost.gain for boost in live.planned(live_run)} == {
        "bf16-autocast": 1.9,
        "gc-pause": None,
    }
    assert live.measured_alone(live_run) == ("bf16-autocast",)
    rows = live.last_word(live.rows(live_run))
    assert [row.gain for row in rows if row.tried == "bf16-autocast"] == [1.9]


def test_a_row_that_says_nothing_has_no_ratio() -> None:
    noisy = wire.Decided("tf32", "slower", "too noisy", gain=2.97, low=0.06, high=146.0, pairs=1)
    (row,) = live.rows(run(noisy))
    assert (row.gain, row.interval, row.pairs) == (None, None, 1)


def test_figures_of_the_program_as_written_that_are_far_apart_are_named() -> None:
    (note,) = live.drift_note({"at first": 790.0, "later": 1540.0, "in A/B runs": None})
    assert note.startswith(
        "the machine's speed changed: as written 790 ms at first, 1540 ms later; gains compare"
    )
    assert live.drift_note({"at first": 790.0, "in A/B runs": 800.0}) == []
