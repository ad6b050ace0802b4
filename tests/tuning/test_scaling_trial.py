"""The verdict of a trial of ranks, from figures; the trial itself runs stand-ins."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from flatout.measuring.rank_trial import RankOutcome
from flatout.nouns.identity import Identity
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.nouns.ranks import Scaling, ScalingRow
from flatout.nouns.trial import Measurement
from flatout.running.one.command import Command
from flatout.running.ranks.layout import RankLayout
from flatout.tuning import plan_file, rank_run, scaling_trial
from flatout_agent import wire

LOSSES = tuple(2.0 - 0.02 * step for step in range(20))
COMMAND = Command(("python", "train.py"), None, "python", ("train.py",))
MACHINE = Identity("Linux", "AMD EPYC", 8, 2**35)
LAYOUT = RankLayout(4, 1, 2)


def measured(step_ms: float, losses: tuple[float | None, ...] = LOSSES) -> Measurement:
    noise = random.Random(0)
    times = tuple(step_ms * noise.uniform(0.98, 1.02) for _ in range(30))
    return Measurement(step_ms, None, times, losses, wait_share=0.1)


def outcome(step_ms: float, losses: tuple[float | None, ...] = LOSSES) -> RankOutcome:
    region = wire.RegionSeen("Net", False, "fewer rows than ranks")
    seen = wire.RanksSeen(2, "gloo", (region,), 4096, exchange_s=0.012, region_s=0.002)
    return RankOutcome(measured(step_ms, losses), seen, None, None, "rank0/output.log")


def row(step_ms: float) -> ScalingRow:
    return scaling_trial.compared(2, measured(40.0), outcome(step_ms))


@pytest.mark.parametrize(
    ("several", "drawn", "verdict"),
    [
        (tuple(loss * (1 + 1e-6) for loss in LOSSES), False, "exact"),
        ((LOSSES[0] * 1.001, *LOSSES[1:]), False, "different"),
        ((LOSSES[0] * 1.001, *LOSSES[1:]), True, "noise"),
        (tuple(loss + 0.5 for loss in LOSSES), True, "different"),
        ((*LOSSES[:5], *(loss + 0.5 for loss in LOSSES[5:])), False, "different"),
        ((None, *LOSSES[1:]), True, "different"),
        (LOSSES[:2], False, None),
        ((), False, None),
    ],
)
def test_losses(several: tuple[float | None, ...], drawn: bool, verdict: str | None) -> None:
    answer, reason = scaling_trial.losses_agree(LOSSES, several, drawn)
    assert answer == verdict
    assert reason


def off_by(share: float) -> tuple[float, ...]:
    """Losses that move away from LOSSES, by so much at the fifth step."""
    return tuple(loss * (1 + share * step / 4) for step, loss in enumerate(LOSSES))


@pytest.mark.parametrize(
    ("ranks", "disturbed", "within"),
    [
        (off_by(2e-3), off_by(-1e-3), True),
        (off_by(2e-3), off_by(1e-5), False),  # rounding takes this program nowhere
        ((LOSSES[0] * 1.001, *off_by(2e-3)[1:]), off_by(1e-3), False),  # before any gradient
        (tuple(loss + 0.5 * (step > 4) for step, loss in enumerate(LOSSES)), off_by(1e-3), False),
        ((*LOSSES[:3], None, *LOSSES[4:]), off_by(1e-3), False),
        (off_by(2e-3), (), False),
    ],
)
def test_what_rounding_does_to_the_losses(
    ranks: tuple[float | None, ...], disturbed: tuple[float | None, ...], within: bool
) -> None:
    assert scaling_trial.within_rounding(LOSSES, ranks, disturbed) is within


def test_speedup_and_its_interval() -> None:
    fast = row(20.0)
    assert fast.speedup == 2.0
    assert fast.efficiency == 1.0
    assert fast.interval is not None
    assert 1.9 < fast.interval[0] < 2.0 < fast.interval[1] < 2.1
    assert fast.interval == row(20.0).interval
    assert fast.wait_s == pytest.approx(0.002)


def test_what_does_not_pay_is_refused_with_what_limits_it() -> None:
    scaling = scaling_trial.chosen(2, 40.0, [row(38.0)])
    assert scaling.count is None
    assert "2 ranks are 1.05x as fast as one process" in scaling.refusal
    assert "12.0 ms exchange gradients, 3.80 ms wait for data, 2.00 ms join" in scaling.refusal
    assert "every rank computes all of Net: fewer rows than ranks" in scaling.refusal
    error = scaling_trial.refused(scaling)
    assert error.exit_code == 1
    assert "--no-trial" in (error.next_step or "")


def test_a_gain_within_the_noise_does_not_pay() -> None:
    noisy = dataclasses.replace(row(30.0), interval=(0.9, 1.9))
    assert scaling_trial.chosen(2, 40.0, [noisy]).count is None


def test_the_fastest_number_is_chosen() -> None:
    two, four = row(20.0), dataclasses.replace(row(25.0), size=4)
    scaling = scaling_trial.chosen(4, 40.0, [two, four])
    assert scaling.count == 2
    assert scaling.chosen is two


def test_ranks_that_learn_something_else_are_refused_however_fast() -> None:
    wrong = scaling_trial.compared(
        2, measured(40.0), outcome(10.0, tuple(loss + 1 for loss in LOSSES))
    )
    scaling = scaling_trial.chosen(2, 40.0, [wrong])
    assert scaling.count is None
    assert "2 ranks do not learn the same as one process" in scaling.refusal


def test_ranks_that_crash_are_refused_with_their_error() -> None:
    crashed = RankOutcome(None, None, None, "ValueError: no (exit code 1)", "rank1/output.log")
    only = scaling_trial.compared(2, measured(40.0), crashed)
    scaling = scaling_trial.chosen(2, 40.0, [only])
    assert "2 ranks could not be measured: ValueError: no (exit code 1)" in scaling.refusal
    assert "rank1/output.log" in scaling.refusal


@pytest.mark.parametrize(("most", "tried"), [(2, [2]), (3, [2, 3]), (4, [2, 4]), (6, [2, 4, 6])])
def test_numbers_of_ranks(most: int, tried: list[int]) -> None:
    assert scaling_trial.sizes(most) == tried


def test_copies_that_do_not_fit_into_memory_are_not_started(tmp_path: Path) -> None:
    written = dataclasses.replace(measured(40.0), peak_bytes=6 << 30)
    machine = scaling_trial.RankMachine(8, 14 << 30)
    excess = scaling_trial._memory_excess
    assert "2 would take 12 GiB of 14 GiB" in (excess(2, written, LAYOUT, machine) or "")
    assert excess(2, written, RankLayout(2, 1, 1, ("0", "1")), machine) is None


def chose(size: int) -> Scaling:
    best = dataclasses.replace(row(20.0), size=size)
    return Scaling(4, size, 40.0, (best,))


def test_the_trial_is_remembered_for_this_machine_and_number(tmp_path: Path) -> None:
    path = tmp_path / "flatout.toml"
    rank_run.write_plan(path, COMMAND, chose(2), LAYOUT, MACHINE)
    plan = plan_file.read(path)
    assert plan.ranks is not None
    assert (plan.ranks.asked, plan.ranks.count, plan.ranks.speedup) == (4, 2, 2.0)
    assert (plan.ranks.efficiency, plan.ranks.losses) == (1.0, "exact")
    assert rank_run.remembered(plan, LAYOUT, MACHINE, None) == 2
    assert rank_run.remembered(plan, RankLayout(8, 1, 1), MACHINE, None) is None
    other = dataclasses.replace(MACHINE, cores=16)
    assert rank_run.remembered(plan, LAYOUT, other, None) is None
    assert rank_run.remembered(plan, LAYOUT, MACHINE, "a script that has changed") is None
    assert rank_run.remembered(Plan(()), LAYOUT, MACHINE, None) is None


def test_a_plan_that_is_there_keeps_all_that_people_wrote(tmp_path: Path) -> None:
    path = tmp_path / "flatout.toml"
    path.write_text("# mine\nversion = 1\n[boosts.tf32]  # good\n")
    for size in (2, 4):
        rank_run.write_plan(path, COMMAND, chose(size), LAYOUT, MACHINE)
    text = path.read_text()
    assert "# mine" in text
    assert "# good" in text
    assert text.count("[ranks]") == 1
    plan = plan_file.read(path)
    assert plan.boosts == (PlannedBoost("tf32"),)
    assert plan.ranks is not None
    assert plan.ranks.count == 4
    assert plan_file.read(path) == plan
