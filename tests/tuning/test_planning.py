"""From what was kept and confirmed to a plan."""

from __future__ import annotations

import dataclasses

import pytest

from flatout.measuring.live import LiveRun
from flatout.nouns.identity import Identity
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.nouns.trial import Guard, Measurement, Trial, Verdict
from flatout.nouns.tuned import Confirmation
from flatout.running.one.command import Command
from flatout.tuning import planning
from flatout.tuning.trials import Found
from flatout_agent import wire

COMMAND = Command(("python", "train.py"), None, "python", ("train.py",))
MACHINE = Identity("Linux", "CPU", 2, None, (), "3.11.7", "2.13.0")
FOUND = Found(
    wire.JobFacts("2.13.0", "3.11", "linux", "cpu"),
    Measurement(10.0, None, (), ()),
    kept=(PlannedBoost("fused-optimizer", {}, 1.03, "exact"),),
    now_ms=9.7,
)


def confirmed(low: float, middle: float, high: float, passed: bool = True) -> Confirmation:
    guard = Guard(passed, "as far as the losses tell")
    return Confirmation(3, (low, middle, high), middle, (low, high), (10.0,), (9.7,), guard)


SINGLE = dataclasses.replace(confirmed(5.0, 5.0, 5.0), interval=None)


@pytest.mark.parametrize(
    ("now_ms", "by", "speedup", "interval", "pairs"),
    [
        pytest.param(9.7, confirmed(1.01, 1.05, 1.09), 1.05, (1.01, 1.09), 3, id="as confirmed"),
        pytest.param(9.7, confirmed(0.97, 1.02, 1.09), 10.0 / 9.7, None, None,
                     id="fresh processes cannot tell: by the pairs of one process"),
        pytest.param(1.25, SINGLE, 5.0, None, None, id="the smaller of both gains"),
        pytest.param(1.25, dataclasses.replace(SINGLE, speedup=0.8, disturbed=True), 8.0, None,
                     None, id="a disturbed one contradicts nothing"),
    ],
)  # fmt: skip
def test_the_speed_of_a_plan(
    now_ms: float,
    by: Confirmation,
    speedup: float,
    interval: tuple[float, float] | None,
    pairs: int | None,
) -> None:
    plan = planning.plan(COMMAND, dataclasses.replace(FOUND, now_ms=now_ms), by, MACHINE)
    assert plan is not None
    assert plan.speedup == pytest.approx(speedup)
    assert (plan.speedup_interval, plan.pairs) == (interval, pairs)


@pytest.mark.parametrize(
    "against",
    [
        pytest.param(confirmed(0.90, 0.95, 1.09), id="slower in the middle"),
        pytest.param(confirmed(0.99, 1.00, 1.02), id="the gain is out of reach"),
        pytest.param(confirmed(1.01, 1.05, 1.09, passed=False), id="learns otherwise"),
    ],
)
def test_a_confirmation_that_denies_the_gain_leaves_no_plan(against: Confirmation) -> None:
    assert planning.plan(COMMAND, FOUND, against, MACHINE) is None


@pytest.mark.parametrize(
    ("steps", "kept"),
    [(None, ["fused-optimizer", "compile"]), (9000, ["fused-optimizer", "compile"]),
     (900, ["fused-optimizer"])],
)  # fmt: skip
def test_what_a_whole_run_does_not_win_back_is_not_kept(steps: int | None, kept: list[str]) -> None:
    """Compiling takes 10 s; the step falls from 10 to 8 ms."""
    compiled = Measurement(8.0, None, (), (), compile_s=10.0)
    both, gain = ("fused-optimizer", "compile"), 9.7 / 8.0
    row = Trial(both, "compile", verdict=Verdict.KEPT, measured=compiled, gain=gain)
    boosts = (*FOUND.kept, PlannedBoost("compile", {}, row.gain, "rounding"))
    search = dataclasses.replace(FOUND, kept=boosts, trials=(row,), now_ms=8.0)
    left = planning.paying(search, steps)
    assert [boost.id for boost in left.kept] == kept
    if "compile" not in kept:
        assert left.now_ms == pytest.approx(9.7)
        assert left.trials[0].verdict is Verdict.SLOWER
        assert left.trials[0].reason == ("compiling takes 10 s, more than a run of 900 steps saves")


def test_a_gain_that_was_not_seen_again_needs_a_clear_confirmation() -> None:
    search = dataclasses.replace(FOUND, now_ms=FOUND.written.step_ms)
    unclear = confirmed(0.97, 1.02, 1.09)
    assert planning.plan(COMMAND, search, None, MACHINE) is None
    assert planning.plan(COMMAND, search, unclear, MACHINE) is None
    assert (
        planning.plan(COMMAND, search, dataclasses.replace(unclear, disturbed=True), MACHINE)
        is None
    )
    plan = planning.plan(COMMAND, search, confirmed(1.40, 1.50, 1.60), MACHINE)
    assert plan is not None
    assert plan.speedup == 1.5


def test_without_any_gain_of_pairs_only_the_confirmation_counts() -> None:
    boosts = (PlannedBoost("fused-optimizer", {}, None, "exact"),)
    search = dataclasses.replace(FOUND, kept=boosts, now_ms=None)
    assert planning.plan(COMMAND, search, confirmed(0.97, 1.02, 1.09), MACHINE) is None
    assert planning.plan(COMMAND, search, None, MACHINE) is not None


def test_a_run_that_ends_before_its_plan_is_measured_leaves_the_plans_own_speed() -> None:
    before = Plan(FOUND.kept, speedup=1.5, script_sha256=None)
    run = LiveRun()
    run.add(1, wire.LiveSummary((wire.BoostOrder("fused-optimizer"),), False, 3, written_ms=10.0))
    plan = planning.of_run(COMMAND, run, MACHINE, before)
    assert plan is not None
    assert plan.speedup == 1.5
    changed = dataclasses.replace(before, script_sha256="of another script")
    plan = planning.of_run(COMMAND, run, MACHINE, changed)
    assert plan is not None
    assert plan.speedup is None


MANY = (
    PlannedBoost("fused-optimizer", {}, 1.1, "exact"),
    PlannedBoost("loader-workers", {}, 1.4, "exact"),
    PlannedBoost("bf16-autocast", {}, 1.5, "rounding"),
)


@pytest.mark.parametrize(
    ("against", "rest", "gain"),
    [
        pytest.param(
            confirmed(0.90, 0.95, 1.00), ["fused-optimizer", "bf16-autocast"], 1.65, id="slower"
        ),
        pytest.param(
            confirmed(1.40, 1.50, 1.60, passed=False), ["fused-optimizer"], 1.1, id="losses differ"
        ),
    ],
)
def test_what_may_be_to_blame_is_left_out_of_a_refused_plan(
    against: Confirmation, rest: list[str], gain: float
) -> None:
    rows = tuple(Trial((b.id,), b.id, verdict=Verdict.KEPT, gain=b.gain) for b in MANY)
    search = dataclasses.replace(FOUND, kept=MANY, trials=rows, now_ms=10.0 / (1.1 * 1.4 * 1.5))
    second = planning.second_choice(search, against)
    assert second is not None
    assert [boost.id for boost in second.kept] == rest
    assert second.speedup == pytest.approx(gain)
    verdicts = {row.tried: row.verdict for row in second.trials}
    assert {name for name in verdicts if verdicts[name] is Verdict.KEPT} == set(rest)


def test_the_rest_of_boosts_that_were_measured_together_promises_nothing() -> None:
    together = tuple(dataclasses.replace(boost, gain=None) for boost in MANY)
    search = dataclasses.replace(FOUND, kept=together, now_ms=5.0, guard=Guard(True, "of all"))
    second = planning.second_choice(search, confirmed(1.4, 1.5, 1.6, passed=False))
    assert second is not None
    assert [boost.id for boost in second.kept] == ["fused-optimizer"]
    assert second.speedup is None
    assert second.guard is None, "it was that of all"
    assert not planning.holds(second, confirmed(0.99, 1.02, 1.05))
    assert planning.holds(second, confirmed(1.01, 1.03, 1.05))


@pytest.mark.parametrize(
    ("kept", "against"),
    [
        pytest.param(MANY, confirmed(1.90, 2.00, 2.30), id="the plan holds"),
        pytest.param(MANY[:1], confirmed(0.90, 0.95, 1.00), id="nothing changes loading"),
        pytest.param(MANY[1:2], confirmed(0.90, 0.95, 1.00), id="nothing is left"),
    ],
)
def test_there_is_no_second_choice_where_none_would_help(
    kept: tuple[PlannedBoost, ...], against: Confirmation
) -> None:
    search = dataclasses.replace(FOUND, kept=kept, now_ms=5.0)
    assert planning.second_choice(search, against) is None
