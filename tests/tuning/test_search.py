"""The loop over trials, with a stand-in for the trial: speeds are given, no time is spent."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from flatout.measuring import trial as measuring
from flatout.measuring import trial_profile
from flatout.measuring.outcome import Outcome, Rank
from flatout.nouns.anatomy import Anatomy
from flatout.nouns.errors import UserError
from flatout.nouns.observer import Silent
from flatout.nouns.profile import Profile
from flatout.nouns.trial import Measured, Verdict
from flatout.running.command import Command
from flatout.tuning import search as searching
from flatout.tuning.candidates import Choice, candidates
from flatout.tuning.confirm import interval
from flatout_agent import wire

FACTS = wire.JobFacts(
    torch="2.13.0",
    python="3.11.7",
    system="linux",
    device="cpu",
    bf16=True,
    cores=8,
    threads=8,
    loaders=(wire.LoaderFacts("Images", False, 32, 500, 0, False, False, "fork", True),),
    models=(wire.ModelFacts("Net", 1_000_000, "float32", "cpu", conv2d=20, matmul=1),),
    optimizers=(wire.OptimizerFacts("AdamW", True, 1_000_000, 40, "float32", None, None),),
    compiler=True,
    step_s=0.1,
    wait_share=0.3,
)
A_PROFILE = Profile(("python", "train.py"), Anatomy("cpu", 100.0, (), 6))
LOSSES = tuple(2.0 - 0.02 * i for i in range(16))
BASE_MS = 100.0


class Machine:
    """Answers trials: what each boost does to the step, and which of them misbehave."""

    def __init__(self, factors: dict[str, float], **behaviour: dict[str, str]) -> None:
        self.factors = factors
        self.wrong = behaviour.get("wrong", {})
        self.crash = behaviour.get("crash", {})
        self.idle = behaviour.get("idle", {})
        self.runs: list[tuple[str, ...]] = []

    def run(self, bench, name, boosts, facts, limit_s, seen=None, **changes):
        ids = tuple(boost.id for boost in boosts)
        self.runs.append(ids)
        tried = boosts[-1].id if boosts else None
        if tried in self.crash:
            return Outcome(None, None, self.crash[tried], True, True, 1, "log", 1.0)
        step_ms = BASE_MS
        for boost in boosts:
            factor = self.factors.get(boost.id, 1.0)
            if callable(factor):
                factor = factor(boost.params, ids)
            step_ms /= factor
        times = tuple(step_ms * (1 + 0.001 * (-1) ** i) for i in range(8))
        rank = Rank(facts=FACTS, steps=[wire.StepTaken(0, "window", step_ms / 1000)])
        error = 0.9 if tried in self.wrong else 0.001
        rank.guard = wire.GuardMeasured((error,) if boosts else (0.0,), 1.2, norm_ratio=1.0)
        for boost in ids:
            state, reason = ("idle", self.idle[boost]) if boost in self.idle else ("engaged", "")
            rank.notes[boost] = wire.BoostNote(boost, state, reason)
        measured = Measured(step_ms, 3200 / step_ms * 10, times, LOSSES)
        return Outcome(rank, measured, None, True, True, 0, "log", 1.0)


@pytest.fixture
def find(monkeypatch, tmp_path):
    def run(
        machine: Machine,
        choice: Choice | None = None,
        budget: float = 1e6,
        predict: searching.Predict | None = None,
        profile: Profile | None = A_PROFILE,
    ):
        monkeypatch.setattr(measuring, "run", machine.run)
        monkeypatch.setattr(
            trial_profile, "profile", lambda bench, name, limit_s, observer: profile
        )
        command = Command(("python", "train.py"), None, "python", ("train.py",))
        bench = measuring.Bench(command, tmp_path, compile_cache=Path("cache"))
        found = searching.Search(bench, choice or Choice(), Silent(), time.monotonic() + budget)
        found.predict = predict
        found.baseline()
        found.profile()
        found.search()
        return found

    return run


def verdicts(found: searching.Search) -> dict[str, Verdict]:
    return {row.tried: row.verdict for row in found.trials if row.tried}


def kept(found: searching.Search) -> list[str]:
    return [boost.id for boost in found.kept]


def test_keeps_what_is_faster_and_drops_the_rest(find):
    found = find(Machine({"bf16-autocast": 1.8, "fused-optimizer": 0.9, "gc-pause": 1.002}))
    assert kept(found) == ["bf16-autocast"]
    assert found.kept[0].gain == pytest.approx(1.8)
    assert verdicts(found)["fused-optimizer"] is Verdict.SLOWER
    assert verdicts(found)["gc-pause"] is Verdict.SLOWER, "0.2 % is within the noise"
    assert found.incumbent.step_ms == pytest.approx(BASE_MS / 1.8)
    assert found.incumbent_trial.boosts == ("bf16-autocast",)
    assert found.deterministic


def test_each_trial_stands_on_what_was_kept(find):
    found = find(Machine({"bf16-autocast": 1.5, "channels-last": 1.2, "loader-workers": 1.3}))
    rows = {row.tried: row.boosts for row in found.trials if row.verdict is Verdict.KEPT}
    assert set(kept(found)) == {"bf16-autocast", "channels-last", "loader-workers"}
    assert rows[kept(found)[-1]] == tuple(kept(found))


def test_faster_and_learning_otherwise_is_not_kept(find):
    found = find(Machine({"bf16-autocast": 3.0}, wrong={"bf16-autocast": ""}))
    assert kept(found) == []
    row = next(row for row in found.trials if row.tried == "bf16-autocast")
    assert row.verdict is Verdict.DIFFERENT
    assert "of batch noise: more than" in row.reason


def test_a_crash_costs_a_row_and_the_search_goes_on(find):
    machine = Machine(
        {"channels-last": 1.4}, crash={"bf16-autocast": "RuntimeError: boom (exit 1)"}
    )
    found = find(machine)
    row = next(row for row in found.trials if row.tried == "bf16-autocast")
    assert (row.verdict, row.reason) == (Verdict.FAILED, "RuntimeError: boom (exit 1)")
    assert kept(found) == ["channels-last"]


def test_one_that_did_not_engage_is_not_counted_as_tried(find):
    found = find(Machine({"bf16-autocast": 2.0}, idle={"bf16-autocast": "bfloat16 is emulated"}))
    row = next(row for row in found.trials if row.tried == "bf16-autocast")
    assert (row.verdict, row.reason) == (
        Verdict.SKIPPED,
        "did not engage: bfloat16 is emulated",
    )


def test_a_dropped_one_is_retried_after_a_change_that_may_have_made_it_worth_it(find):
    def channels_last(params, on):
        return 1.4 if "bf16-autocast" in on else 0.8

    machine = Machine({"bf16-autocast": 1.1, "channels-last": channels_last})
    # Tried before bf16-autocast, whatever the predictions say.
    found = find(machine, Choice(only=("channels-last", "bf16-autocast")))
    order = [ids for ids in machine.runs if "channels-last" in ids]
    assert "channels-last" in kept(found)
    if ("channels-last",) in order:
        assert any(row.retried for row in found.trials)


def test_conflicting_boosts_are_never_combined(find):
    found = find(Machine({"bf16-autocast": 1.5, "cpu-bf16": 1.5}))
    both = {"bf16-autocast", "cpu-bf16"}
    assert not any(both <= set(row.boosts) and row.measured for row in found.trials)
    assert len(both & set(kept(found))) == 1
    skipped = next(row for row in found.trials if row.tried in both - set(kept(found)))
    assert "cannot be on together with" in skipped.reason


def test_parameters_are_halved_and_the_best_is_kept(find):
    speeds = {"auto": 1.2, 1: 1.1, 2: 1.2, 4: 1.6, 8: 0.9}
    machine = Machine({"loader-workers": lambda params, on: speeds[params["workers"]]})
    found = find(machine, Choice(only=("loader-workers",)))
    assert found.kept[0].params["workers"] == 4
    rows = [row for row in found.trials if row.tried == "loader-workers"]
    assert sum(row.verdict is Verdict.KEPT for row in rows) == 1


def test_nothing_begins_that_would_end_after_the_budget(find):
    machine = Machine({"bf16-autocast": 2.0})
    found = find(machine, budget=0.0)
    assert kept(found) == []
    assert len(machine.runs) == 2, "the program as written is measured all the same"
    assert all(
        row.reason == "no time left in the budget" for row in found.trials
        if row.tried and row.tried == "bf16-autocast"
    )  # fmt: skip


def test_what_the_user_allows(find):
    factors = {"bf16-autocast": 2.0, "channels-last": 1.5, "batch-size": 1.5}
    assert kept(find(Machine(factors), Choice(exact=True))) == ["channels-last"]
    assert "bf16-autocast" not in kept(find(Machine(factors), Choice(skip=("bf16-autocast",))))
    assert kept(find(Machine(factors), Choice(only=("bf16-autocast",)))) == ["bf16-autocast"]
    assert "batch-size" not in kept(find(Machine(factors)))


@pytest.mark.parametrize("word", ["only", "skip", "allow"])
def test_an_unknown_boost_is_refused_with_the_nearest(word):
    with pytest.raises(UserError) as error:
        Choice(**{word: ("bf16",)})
    assert "bf16-autocast" in str(error.value.next_step)


def test_everything_left_out_says_why():
    cpu = dataclasses.replace(FACTS, models=(), loaders=(), optimizers=())
    _, skipped = candidates(cpu, Choice())
    assert all(row.reason and row.verdict is Verdict.SKIPPED for row in skipped)
    reasons = {row.tried: row.reason for row in skipped}
    assert "GPU" in reasons["cuda-graphs"]
    assert "--allow batch-size" in reasons["batch-size"]


def test_interval_holds_the_median_and_is_the_same_each_time():
    ratios = (2.0, 2.1, 1.9, 2.05, 2.2)
    low, high = interval(ratios)
    assert 1.9 <= low <= 2.05 <= high <= 2.2
    assert interval(ratios) == (low, high)
    assert interval((2.0,)) == (2.0, 2.0)


def test_what_the_profile_predicts_comes_first_and_is_told_beside_what_was_measured(find):
    machine = Machine({"channels-last": 1.4, "bf16-autocast": 1.1})
    found = find(machine, predict=lambda profile: {"channels-last": 9.0, "gc-pause": 8.0})
    tried = [row for row in found.trials if row.tried and row.verdict is not Verdict.SKIPPED]
    assert [row.tried for row in tried[:2]] == ["channels-last", "gc-pause"]
    assert tried[0].predicted == 9.0
    assert tried[0].gain == pytest.approx(1.4)
    unasked = next(row for row in tried if row.tried == "bf16-autocast")
    assert unasked.predicted == 1.0, "no finding asked for it"


def test_without_a_profile_the_rules_of_thumb_give_the_order(find):
    machine = Machine({"bf16-autocast": 1.5})
    plain = [row.tried for row in find(machine).trials]
    asked: list[Profile] = []

    def predict(profile: Profile) -> dict[str, float]:
        asked.append(profile)
        return {}

    failed = find(machine, predict=predict, profile=None)
    assert [row.tried for row in failed.trials] == plain
    assert not asked
    assert all(row.predicted is None for row in failed.trials)
    find(machine, budget=6.0, predict=predict)
    assert not asked, "a budget of six trials has no room for a profile"
    find(machine, Choice(only=("gc-pause", "bf16-autocast")), predict=predict)
    assert not asked, "two boosts are both tried, in whatever order"


def test_what_compiles_and_is_not_asked_for_comes_last(find):
    def order(predicted):
        trials = find(Machine({}), predict=lambda profile: predicted).trials
        return [row.tried for row in trials if row.tried and row.verdict is not Verdict.SKIPPED]

    unasked = order({"gc-pause": 9.0})
    assert unasked[0] == "gc-pause"
    assert unasked[-1] == "compile"
    assert order({"compile": 9.0})[0] == "compile"
