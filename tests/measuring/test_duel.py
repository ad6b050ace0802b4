"""The untouched program and the plan in turn: one runs, the other waits."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flatout.measuring import duel
from flatout.measuring.duel import DuelFailedError, EndedEarlyError, Side
from flatout.measuring.trial import Bench
from flatout.nouns.plan import PlannedBoost
from flatout.probing import neighbours
from flatout.running.one.trial_process import TrialProcess
from flatout_agent import wire
from measuring.programs import PAUSED, at_each_step
from measuring.test_trial import bench
from processes import under_orders

pytestmark = pytest.mark.slow

PLAN = (PlannedBoost("gc-pause"),)
LIMIT_S = 240.0
"""So long that no machine, however loaded, takes it for two starts and some windows."""


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """Tests run side by side: what others take of the cores is looked at where a test says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours.Stretch, "disturbed", lambda stretch: False)
        patch.setattr(duel, "LATE", float("inf"))
        yield


def fight(folder: Path, text: str, limit_s: float = LIMIT_S) -> tuple[Side, Side]:
    return duel.fight(bench(folder, text), PLAN, None, 3, limit_s)


@dataclass(frozen=True)
class Fought:
    """A duel that is over, its table, and what was told meanwhile."""

    folder: Path
    table: Bench
    untouched: Side
    plan: Side
    progress: list[tuple[int, float | None]]


@pytest.fixture(scope="module")
def fought(tmp_path_factory: pytest.TempPathFactory) -> Fought:
    """Three pairs are asked for, and five make it clear; the programs note when a step begins."""
    folder = tmp_path_factory.mktemp("duel")
    text = f"print('at', time.monotonic(), flush=True); time.sleep(0 if {PAUSED} else 0.02)"
    table, progress = bench(folder, at_each_step(text)), []
    untouched, plan = duel.fight(
        table,
        PLAN,
        None,
        3,
        LIMIT_S,
        lambda pair, ratio: progress.append((pair, ratio)),
        most=6,
        unclear=lambda ratios: len(ratios) < 5,
    )
    assert under_orders(str(folder)) == []
    return Fought(folder, table, untouched, plan, progress)


def test_windows_in_turn(fought: Fought) -> None:
    # each pair is one window of each
    untouched, plan = fought.untouched, fought.plan
    assert [pair for pair, _ in fought.progress] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    ratios = [ratio for _, ratio in fought.progress if ratio is not None]
    assert ratios == [
        before / after for before, after in zip(untouched.windows_ms, plan.windows_ms, strict=True)
    ]
    assert min(untouched.windows_ms) > 20, "only with gc-pause does it not sleep"
    assert (untouched.process.notes.keys(), plan.process.notes.keys()) == (set(), {"gc-pause"})
    shared = min(len(untouched.losses), len(plan.losses))
    assert shared >= 15, "each tells its losses at its end"
    assert untouched.losses[:shared] == plan.losses[:shared]
    # both measure the same steps
    measured = [
        [(step.window, step.index) for step in side.process.steps if step.phase == "window"]
        for side in (untouched, plan)
    ]
    assert measured[0] == measured[1]
    # while one runs the other stands still
    times = {
        side: [
            float(line.split()[1])
            for line in (fought.folder / "run" / side / "output.log").read_text().splitlines()
        ]
        for side in ("duel-without", "duel-with")
    }
    before, after = times.values()
    marks = sorted([(at, "a") for at in before] + [(at, "b") for at in after])
    order = "".join(name for _, name in marks)
    turns = [len(list(steps)) for _, steps in itertools.groupby(order)]
    # the first step of both, the warm-up of each, and five windows of each
    assert 12 <= len(turns) <= 14 and min(turns[-10:]) >= 3, order


def player(step_s: float, lags: bool = False, **late_s: float) -> duel._Player:
    """A program of ten warm-up steps and three windows of ten steps; late: the seconds of steps."""
    made = duel._Player(cast(TrialProcess, None), lags)
    for index in range(40):
        phase: wire.Phase = "warmup" if index < 10 else "window"
        wall_s = late_s.get(f"step_{index}", step_s)
        step = wire.StepTaken(index, phase, wall_s, 0.0, 0.0, 1, max(0, index // 10 - 1))
        made.processes.add(7, step)
    return made


def test_a_step_that_is_late_in_both_programs_is_left_out_of_their_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duel, "LATE", 3.0)
    untouched = player(0.2, step_12=2.0, step_23=2.0)
    planned = player(0.1, step_12=2.0, step_35=2.0)
    before, after = duel._sides([untouched, planned], 3)
    assert before.windows_ms == pytest.approx((200, 380, 200))
    assert after.windows_ms == pytest.approx((100, 100, 290))
    often = {f"step_{index}": 2.0 for index in range(0, 40, 5)}  # every fifth step trains more
    before, after = duel._sides([player(0.2, **often), player(0.1, **often)], 3)
    assert before.windows_ms == pytest.approx(3 * (560,))


def test_where_a_device_lags_behind_the_step_that_waits_for_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host queues ten steps in 5 ms each, and waits for their work at the window's end."""
    monkeypatch.setattr(duel, "LATE", 3.0)
    waiting = {"step_19": 0.3, "step_29": 0.3, "step_39": 0.3}
    before, after = duel._sides([player(0.005, True, **waiting), player(0.005, True, **waiting)], 3)
    assert before.windows_ms == after.windows_ms == pytest.approx(3 * (34.5,))


@pytest.mark.parametrize(("device", "lags"), [(None, False), ("cpu", False), ("cuda", True)])
def test_a_duel_knows_whether_its_device_lags_behind(
    device: str | None, lags: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []

    class StartedError(Exception):
        """Both programs are there."""

    class Player:
        def __init__(self, program: object, lags: bool) -> None:
            made.append(lags)

        def reach(self, *_: object) -> None:
            raise StartedError

    monkeypatch.setattr(duel, "_Player", Player)
    monkeypatch.setattr(Bench, "program", lambda *_, **named: contextlib.nullcontext())
    facts = None if device is None else wire.JobFacts("2.13.0", "3.11", "linux", device)
    with pytest.raises(StartedError):
        duel.fight(bench(tmp_path, ""), PLAN, facts, 3, LIMIT_S)
    assert made == [lags, lags]


def test_on_a_crowded_device_only_one_of_them_is_there_at_a_time(tmp_path: Path) -> None:
    text = at_each_step("print('at', time.monotonic(), flush=True); time.sleep(0.02)")
    table = dataclasses.replace(bench(tmp_path, text), crowded=True)
    untouched, plan = duel.fight(table, PLAN, None, 2, LIMIT_S)
    assert len(untouched.windows_ms) == len(plan.windows_ms) == 2
    spans = []
    for log in sorted((tmp_path / "run").glob("duel-*/output.log")):
        times = [float(line.split()[1]) for line in log.read_text().splitlines() if "at " in line]
        spans.append((times[0], times[-1]))
    spans.sort()
    assert len(spans) == 4
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("line", "limit_s", "error"),
    [
        (f"if {PAUSED} and step == 2: raise KeyError('weights')", LIMIT_S, "KeyError: 'weights'"),
        pytest.param(
            "if step == 9: break", LIMIT_S, "the program ended early", marks=pytest.mark.thorough
        ),
        pytest.param(
            "if step == 9: time.sleep(600)",
            2.0,
            "the time limit was reached",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_duel_without_a_result_says_why_and_leaves_nothing(
    tmp_path: Path, line: str, limit_s: float, error: str
) -> None:
    with pytest.raises(DuelFailedError, match=error) as failed:
        fight(tmp_path, at_each_step(line), limit_s)
    assert failed.value.of_plan is ("KeyError" in line)
    assert under_orders(str(tmp_path)) == []


NO_ROOM_FOR_TWO = """if step == 0:
        import fcntl
        memory = open(__file__)
        fcntl.flock(memory, fcntl.LOCK_EX | fcntl.LOCK_NB)"""
"""The second program that takes what stands for the device's memory fails."""


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
def test_where_there_is_no_room_for_both_they_run_one_after_the_other(tmp_path: Path) -> None:
    table = bench(tmp_path, at_each_step(NO_ROOM_FOR_TWO))
    untouched, plan = duel.fight(table, PLAN, None, 1, LIMIT_S)
    assert len(untouched.windows_ms) == len(plan.windows_ms) == 1
    assert plan.process.notes.keys() == {"gc-pause"}
    folders = sorted(folder.name for folder in (tmp_path / "run").iterdir())
    alone = ["duel-alone-with-1", "duel-alone-without-1"]
    assert folders == [*alone, "duel-with", "duel-without"]


@pytest.mark.parametrize(
    ("device", "codes", "pairs", "alone"),
    [
        ("cpu", (None, 1), 0, False),  # as written it went as far
        ("cpu", (None, 1), 3, False),
        ("cpu", (1, None), 0, True),
        ("cuda", (None, 1), 0, True),  # there may be no room for both
        ("cuda", (1, None), 0, True),
    ],
)
def test_a_plan_that_fails_where_the_program_as_written_went_on_is_to_blame(
    device: str,
    codes: tuple[int | None, int | None],
    pairs: int,
    alone: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """codes: how the program as written and the one with the plan ended, after so many pairs."""
    left = list(codes)

    class Player(duel._Player):
        def reach(self, *_: object) -> None:
            pass

    def windows(players: list[Any], ratios: list[float], *_: object) -> None:
        ratios += pairs * [1.5]
        raise EndedEarlyError("it ended", failed=True)

    def one_after_another(*_: object) -> str:
        return "one after another"

    def program(*_: object, **named: object) -> Any:
        process = SimpleNamespace(returncode=left.pop(0), suspend=lambda: None)
        return contextlib.nullcontext(process)

    monkeypatch.setattr(duel, "_Player", Player)
    monkeypatch.setattr(duel, "_warm_up", lambda *_: None)
    monkeypatch.setattr(duel, "_windows", windows)
    monkeypatch.setattr(duel, "_one_after_another", one_after_another)
    monkeypatch.setattr(Bench, "program", program)
    facts = wire.JobFacts("2.13.0", "3.11", "linux", device)
    if alone:
        assert duel.fight(bench(tmp_path, ""), PLAN, facts, 3, LIMIT_S) == "one after another"
    else:
        with pytest.raises(EndedEarlyError) as failed:
            duel.fight(bench(tmp_path, ""), PLAN, facts, 3, LIMIT_S)
        assert failed.value.of_plan


@pytest.mark.thorough
def test_a_program_that_ends_while_more_are_taken_gives_what_it_has(tmp_path: Path) -> None:
    table = bench(tmp_path, at_each_step("time.sleep(0.02)\n    if step == 40: break"))
    untouched, plan = duel.fight(
        table, PLAN, None, 2, LIMIT_S, most=50, unclear=lambda ratios: True
    )
    assert 2 <= len(untouched.windows_ms) == len(plan.windows_ms) < 50
    assert under_orders(str(tmp_path)) == []


DRAWS = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout({rate}))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(200):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().sum().backward()
    optimizer.step()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_of_whole_runs_those_as_written_draw_other_numbers_from_the_second_on(
    tmp_path: Path, rate: float
) -> None:
    table = bench(tmp_path, DRAWS.format(rate=rate))
    untouched, plan = duel.whole_runs(table, PLAN, None, 3, LIMIT_S)
    assert len(untouched.redrawn) == 2
    assert untouched.losses == plan.losses
    for redrawn in untouched.redrawn:
        assert len(redrawn) == len(untouched.losses) == 200
        assert redrawn[0] == untouched.losses[0]
        assert (redrawn == untouched.losses) is (rate == 0.0)


@pytest.mark.parametrize(("disturbed", "taken"), [({0, 3}, 4), (range(99), duel.MOST_DISTURBED)])
def test_disturbed_windows_are_taken_anew_within_reason(
    disturbed: Container[int], taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows are numbered in their order: 0 is the first of the program as written."""
    windows = itertools.count()
    monkeypatch.setattr(neighbours.Stretch, "disturbed", lambda stretch: next(windows) in disturbed)
    table = bench(tmp_path, at_each_step("time.sleep(0.005)"))
    untouched, plan = duel.fight(table, PLAN, None, 2, LIMIT_S, most=8)
    assert len(untouched.windows_ms) == len(plan.windows_ms) == taken
    pairs = list(zip(untouched.disturbed, plan.disturbed, strict=True))
    assert pairs == [(2 * n in disturbed, 2 * n + 1 in disturbed) for n in range(taken)]
