"""A run that is tuned while it trains says once a minute what it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.nouns.plan import Plan
from flatout.nouns.trial import Trial
from flatout.running.one.command import Command
from flatout.tuning import live_run
from flatout.tuning.live_run import SILENT_S, LiveTuning
from flatout_agent import wire
from reporting import tuned_examples


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live_run, "time", clock)
    return clock


def test_a_minute_without_a_decision_is_not_silent(clock: Clock) -> None:
    decided: list[Trial] = []
    told: list[str] = []
    tuning = LiveTuning(Plan(()), (False, (), ()), None, decided.append, told.append)
    clock.now_s += SILENT_S - 1
    tuning.heard([])
    assert told == []
    clock.now_s += 1
    tuning.heard([])
    assert told == ["still before the first comparison, after 1 min 00 s"]
    clock.now_s += SILENT_S / 2
    tuning.heard([(7, wire.BlockRun(120, 10, 5.0, ("tf32",)))])
    slower = wire.Decided("gc-pause", "slower", "slower", gain=0.9, low=0.8, high=0.99, pairs=5)
    tuning.heard([(7, slower)])
    clock.now_s += SILENT_S - 1
    tuning.heard([])
    assert (len(decided), len(told)) == (1, 1)
    clock.now_s += 1
    tuning.heard([])
    assert told[1:] == ["step 129, with tf32: still comparing, after 2 min 30 s"]


def test_when_all_is_decided_nothing_more_is_said(clock: Clock) -> None:
    told: list[str] = []
    tuning = LiveTuning(Plan(()), (False, (), ()), None, lambda row: None, told.append)
    tuning.heard([(7, wire.LiveSummary((), True, 100))])
    clock.now_s += 10 * SILENT_S
    tuning.heard([])
    assert told == []


def test_plan_and_report_of_a_run_are_not_lost_with_the_place_of_the_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tuning = LiveTuning(Plan(()), (False, (), ()), None, lambda row: None, lambda line: None)
    told: list[str] = []
    monkeypatch.setattr(tuning, "outcome", lambda command: tuned_examples.good())
    command = Command(("python", "train.py"), None, "python", ("train.py",))
    written = tuning.write_plan(command, tmp_path / "none" / "fast.toml", tmp_path, told.append)
    assert written is not None
    assert written.plan_path == str(tmp_path / "fast.toml")
    assert (tmp_path / "fast.toml").is_file()
    assert len(told) == 1


def test_a_run_whose_steps_as_written_became_far_slower_says_so() -> None:
    tuning = LiveTuning(Plan(()), (False, (), ()), None, lambda row: None, lambda line: None)
    facts = wire.JobFacts("2.13.0", "3.11", "linux", "cpu")
    summary = wire.LiveSummary((), True, 100, written_ms=11.7, now_ms=11.7)
    blocks = [wire.BlockRun(step, 5, ms, ()) for step, ms in ((1, 3.4), (9, 11.6), (20, 11.8))]
    tuning.heard([(7, record) for record in (wire.JobSeen(facts), *blocks, summary)])
    outcome = tuning.outcome(Command(("python", "train.py"), None, "python", ("train.py",)))
    assert outcome is not None
    assert any("as written 3.40 ms at first, 11.7 ms later" in note for note in outcome.notes)


def test_what_only_a_start_can_set_has_the_lines_that_do_it() -> None:
    tuning = LiveTuning(Plan(()), (False, (), ()), None, lambda row: None, lambda line: None)
    late = wire.Decided("cudnn-benchmark", "untried", "at the start", why_untried="needs_start")
    tuning.heard([(7, late)])
    assert tuning.only_at_start() == {}, "the program is not known yet"
    tuning.heard([(7, wire.JobSeen(wire.JobFacts("2.13.0", "3.11.7", "linux", "cuda")))])
    assert tuning.only_at_start() == {"cudnn-benchmark": "torch.backends.cudnn.benchmark = True\n"}
