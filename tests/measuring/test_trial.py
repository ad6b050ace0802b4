"""One trial of a real program: its figures, or in one line why there are none."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

import forked
from flatout.measuring import trial
from flatout.measuring.outcome import Outcome
from flatout.measuring.trial import Bench
from flatout.nouns.plan import PlannedBoost
from flatout.running.one.command import Command
from flatout_agent import wire
from measuring.programs import PAUSED, PLAIN, at_each_step

pytestmark = pytest.mark.slow

LIMIT_S = 240.0
"""So long that no machine, however loaded, takes it for a start and a few steps."""


class HangClock:
    """The clock of `trial`: it passes the limit when the hang is there, not before."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.steps: list[wire.StepTaken] = []

    @property
    def hanging(self) -> bool:
        """All four steps are recorded, and the line printed before the hang is complete."""
        return len(self.steps) == 4 and self.log.read_bytes().endswith(b"\n")

    def monotonic(self) -> float:
        return time.monotonic() + (2 * LIMIT_S if self.hanging else 0.0)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has ended its trial vanishes in its own time."""
    monkeypatch.setattr(trial, "QUIET_EXIT_S", 120.0)


def bench(folder: Path, text: str, python: str | None = None) -> Bench:
    script = folder / "train.py"
    script.write_text(text)
    python = python or forked.python()
    command = Command((python, str(script)), script, python, (str(script),))
    return Bench(
        command,
        folder / "run",
        min_steps=3,
        max_steps=5,
        window_s=0.05,
        protect=folder,
        compile_cache=folder / "cache",
    )


def run(folder: Path, text: str, *boosts: str) -> Outcome:
    planned = tuple(PlannedBoost(boost) for boost in boosts)
    return trial.run(bench(folder, text), trial.FIRST, planned, None, LIMIT_S)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_figures_of_a_trial_and_its_twin(tmp_path: Path) -> None:
    table = bench(tmp_path, PLAIN)
    steps: list[wire.StepTaken] = []
    first = trial.run(table, trial.FIRST, (), None, LIMIT_S, steps.append)
    assert (first.error, first.returncode, first.faults) == (None, 0, ())
    assert first.torch_seen
    assert 3 <= len(first.measured.steps_ms) <= 5
    assert first.measured.step_ms > 0
    assert (first.measured.peak_bytes or 0) > 50e6
    phases = [step.phase for step in steps]
    assert phases[:2] == ["warmup"] * 2
    assert phases.count("window") == len(first.measured.steps_ms)
    assert [step.index for step in steps] == list(range(len(steps)))
    facts = first.process.facts if first.process else None
    twin = trial.run(table, "twin-2", (), facts, LIMIT_S)
    shared = min(len(first.measured.losses), len(twin.measured.losses))
    assert twin.measured.losses[:shared] == first.measured.losses[:shared]


def test_a_boost_is_on_and_says_so(tmp_path: Path) -> None:
    text = at_each_step(f"assert {PAUSED}, 'gc-pause is not on'")
    outcome = run(tmp_path, text, "gc-pause")
    assert outcome.error is None
    assert outcome.notes["gc-pause"].state in ("engaged", "idle")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("if step == 4: raise KeyError('weights')", "KeyError: 'weights' (exit code 1)"),
        pytest.param("if step == 4: sys.exit(3)", "exit code 3", marks=pytest.mark.thorough),
        pytest.param(
            "if step == 4: sys.exit('no more data')",
            "no more data (exit code 1)",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "if step == 4: break",
            "the program ended by itself after 4 steps: too few to measure",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "if step == 4: os.kill(os.getpid(), signal.SIGKILL)",
            "killed by signal 9",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
        ),
    ],
)
def test_why_there_are_no_figures(tmp_path: Path, line: str, error: str) -> None:
    outcome = run(tmp_path, at_each_step(line))
    assert outcome.measured is None
    assert outcome.error == error
    assert len(outcome.process.steps) == 4


def test_a_hang_ends_at_the_limit_with_all_that_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    text = at_each_step(
        f"if step == 4: {child}; print(child.pid, flush=True); time.sleep(600)",
    )
    table = bench(tmp_path, text)
    clock = HangClock(table.folder / trial.FIRST / "output.log")
    monkeypatch.setattr(trial, "time", clock)
    outcome = trial.run(table, trial.FIRST, (), None, LIMIT_S, clock.steps.append)
    assert outcome.error == "stopped after 240 s with 4 steps taken"
    assert outcome.late
    assert not runs(int(Path(outcome.log).read_text()))


@pytest.mark.thorough
def test_a_program_without_torch(tmp_path: Path) -> None:
    table = bench(tmp_path, "print('done')", sys.executable)
    outcome = trial.run(table, trial.FIRST, (), None, LIMIT_S)
    assert (outcome.agent_seen, outcome.torch_seen, outcome.process) == (True, False, None)
    assert outcome.error == "the program ended by itself after 0 steps: too few to measure"
    assert Path(outcome.log).read_text() == "done\n"


@pytest.mark.thorough
def test_the_first_trial_prepares_the_files_of_the_others(tmp_path: Path) -> None:
    table = bench(tmp_path, PLAIN)
    first = table.trial_orders(table.reference)
    other = table.trial_orders(table.folder / "tf32-2", min_steps=9)
    assert first.prepared is None
    assert Path(other.prepared or "").parent.parent == table.reference
    assert first.scratch != other.scratch
    assert (first.min_steps, other.min_steps) == (3, 9)


@pytest.mark.parametrize("step_ms", [0.2, 2.5, 30.0, 900.0])
def test_a_window_of_a_duel_holds_a_second_of_steps(step_ms: float, tmp_path: Path) -> None:
    windows = bench(tmp_path, "").with_windows(step_ms)
    assert windows.window_s == 1.0
    assert windows.min_steps * step_ms <= 2000
    assert windows.max_steps * step_ms >= 1000
