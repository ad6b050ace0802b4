"""What becomes of a plan that fresh processes refuse."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from flatout.measuring.duel import DuelFailedError, EndedEarlyError, Side
from flatout.measuring.outcome import Outcome
from flatout.nouns.observer import Silent
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Measurement, Trial, Verdict
from flatout.running.one.command import Command
from flatout.running.one.records import Process
from flatout.tuning import tune as tuning
from flatout.tuning.candidates import Allowance
from flatout.tuning.trials import Found
from flatout.tuning.tune import TuneSettings
from flatout_agent import wire

FOUND = Found(
    wire.JobFacts("2.13.0", "3.11", "linux", "cpu"),
    Measurement(100.0, None, (), ()),
    kept=(
        PlannedBoost("bf16-autocast", {}, 1.5, "rounding"),
        PlannedBoost("loader-workers", {}, 1.4, "exact"),
    ),
    now_ms=100.0 / (1.5 * 1.4),
)


@pytest.fixture
def speedups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[frozenset[str], Any]:
    """True speed-ups of sets of boosts, which fresh processes show, or what ends these."""
    true: dict[frozenset[str], Any] = {}
    names: list[str] = []

    def fight(bench: Any, boosts: tuple[PlannedBoost, ...], *_: Any, **named: Any) -> Any:
        names.append(named["name"])
        assert len(set(names)) == len(names), "each duel has folders of its own"
        gain = true[frozenset(boost.id for boost in boosts)]
        if isinstance(gain, BaseException):
            raise gain
        plan = tuple(window / gain for window in (100.0, 101.0, 99.0, 100.0, 100.0))
        untouched = Side((100.0,) * 5, (), Process())
        return untouched, dataclasses.replace(untouched, windows_ms=plan)

    monkeypatch.setattr("flatout.measuring.duel.fight", fight)
    monkeypatch.setattr("flatout.tuning.trials.find", lambda *_: FOUND)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    return true


def tuned() -> Any:
    command = Command(("python", "train.py"), None, "python", ("train.py",))
    return tuning.tune(command, Allowance(), TuneSettings(budget_s=60.0), Path("run"), Silent())


def test_a_program_that_spends_its_time_between_the_steps_is_told_so():
    written = Side((2.0, 2.0), (), Process(), whole_ms=6.0)
    planned = Side((1.0, 1.0), (), Process(), whole_ms=5.0)
    (note,) = tuning.between_steps_note(written, planned)
    assert note.startswith("67% of the program's time as written is not in training steps")
    assert note.endswith("about 1.20x faster")
    assert not tuning.between_steps_note(dataclasses.replace(written, whole_ms=2.2), planned)
    assert not tuning.between_steps_note(dataclasses.replace(written, whole_ms=None), planned)


def test_it_is_confirmed_again_without_what_may_be_to_blame(
    speedups: dict[frozenset[str], Any],
) -> None:
    speedups[frozenset({"bf16-autocast", "loader-workers"})] = 0.95
    speedups[frozenset({"bf16-autocast"})] = 1.5
    result = tuned()
    assert [boost.id for boost in result.plan.boosts] == ["bf16-autocast"]
    assert result.plan.speedup == pytest.approx(1.5)
    assert "A/B runs refused the plan with loader-workers; the plan is the rest" in result.notes


def test_a_rest_that_is_refused_too_leaves_no_plan(
    speedups: dict[frozenset[str], Any],
) -> None:
    speedups[frozenset({"bf16-autocast", "loader-workers"})] = 0.95
    speedups[frozenset({"bf16-autocast"})] = 0.97
    result = tuned()
    assert result.plan is None
    assert result.confirmation.speedup == pytest.approx(0.95)


@pytest.mark.parametrize(
    "end",
    [
        KeyboardInterrupt(),
        DuelFailedError("the time limit was reached"),
        DuelFailedError("CUDA out of memory", of_plan=True),
    ],
)
def test_what_was_refused_stays_refused_if_the_second_try_does_not_end(
    end: BaseException, speedups: dict[frozenset[str], Any]
) -> None:
    speedups[frozenset({"bf16-autocast", "loader-workers"})] = 0.95
    speedups[frozenset({"bf16-autocast"})] = end
    result = tuned()
    assert result.plan is None
    assert result.confirmation.speedup == pytest.approx(0.95)
    assert result.interrupted is isinstance(end, KeyboardInterrupt)
    assert not any("not confirmed" in note for note in result.notes)


def test_what_is_interrupted_while_it_is_confirmed_is_the_best_so_far(
    speedups: dict[frozenset[str], Any],
) -> None:
    speedups[frozenset({"bf16-autocast", "loader-workers"})] = KeyboardInterrupt()
    result = tuned()
    assert result.interrupted
    assert result.plan is not None and result.plan.speedup == pytest.approx(2.1)
    assert "interrupted: the best result so far was not confirmed" in result.notes


@pytest.mark.parametrize("of_plan", [True, False])
def test_a_plan_with_which_the_program_fails_is_not_written(
    of_plan: bool, speedups: dict[frozenset[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the program as written fails, or both do, the pairs of the search are all there is."""
    rows = tuple(
        Trial((boost.id,), boost.id, verdict=Verdict.KEPT, gain=boost.gain) for boost in FOUND.kept
    )
    found = dataclasses.replace(FOUND, trials=rows)
    monkeypatch.setattr("flatout.tuning.trials.find", lambda *_: found)
    error = DuelFailedError("KeyError: 'weights'", of_plan=of_plan)
    speedups[frozenset({"bf16-autocast", "loader-workers"})] = error
    result = tuned()
    assert (result.plan is None) is of_plan
    verdicts = {row.verdict for row in result.trials}
    assert verdicts == {Verdict.FAILED if of_plan else Verdict.KEPT}
    (note,) = result.notes
    begins = "A/B runs refused the plan" if of_plan else "measured between steps, not confirmed"
    assert note.startswith(begins) and note.endswith("KeyError: 'weights'")


@pytest.mark.parametrize("failed", [True, False])
def test_a_program_that_fails_is_not_short(
    failed: bool, speedups: dict[frozenset[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    speedups[frozenset({"bf16-autocast", "loader-workers"})] = EndedEarlyError("it ended", failed)
    runs: list[str] = []

    def whole_runs(*_: Any, **named: Any) -> Any:
        runs.append(named["name"])
        raise DuelFailedError("it ended again")

    monkeypatch.setattr("flatout.measuring.duel.whole_runs", whole_runs)
    result = tuned()
    assert bool(runs) is not failed
    assert any("is short" in note for note in result.notes) is not failed


def test_losses_that_differ_are_not_forgiven_if_the_runs_that_might_do_it_are_interrupted(
    speedups: dict[frozenset[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fight(bench: Any, *_: Any, **named: Any) -> Any:
        falling = tuple(1.0 - 0.01 * step for step in range(30))
        apart = tuple(loss + 1.0 for loss in falling)
        return tuple(Side(5 * (100.0,), losses, Process()) for losses in (falling, apart))

    def interrupted(*_: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("flatout.measuring.duel.fight", fight)
    monkeypatch.setattr("flatout.measuring.trial.run", interrupted)
    result = tuned()
    assert result.plan is None
    assert result.interrupted
    assert not result.confirmation.guard.passed


def test_runs_with_other_random_numbers_take_no_more_steps_than_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that the deadline cuts off would tell nothing, and the plan would be lost."""
    falling = tuple(1.0 - 0.001 * step for step in range(200))
    untouched = Side(5 * (100.0,), falling, Process())
    steps: list[int] = []

    def run(*_: Any, **orders: Any) -> Outcome:
        steps.append(orders["max_steps"])
        process = Process(1)
        process.losses = tuple(loss + 0.001 for loss in falling[: steps[-1]])
        return Outcome(process, None, None, True, True, 0, "log", 1.0)

    monkeypatch.setattr("flatout.measuring.trial.run", run)
    bench: Any = None  # only `run` uses it
    found = dataclasses.replace(FOUND, start_s=2.0)
    for left_s, most in ((8.0, 40), (2.5, 0), (500.0, 200)):
        steps.clear()
        deadline = time.monotonic() + left_s
        sigmas = tuning._own_sigmas(bench, found, untouched, deadline, "duel")
        assert len(sigmas) == (3 if most else 0)
        assert all(0.9 * most <= count <= most for count in steps)
