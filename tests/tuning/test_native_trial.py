"""Programs that know ranks themselves: how they are started and judged; trials are stand-ins."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from flatout.measuring import rank_trial, trial
from flatout.measuring.outcome import Outcome
from flatout.measuring.rank_trial import RankOutcome
from flatout.nouns.errors import UserError
from flatout.nouns.identity import Identity
from flatout.nouns.nodes import NativeProgram
from flatout.nouns.plan import Plan, PlannedRanks
from flatout.nouns.ranks import ScalingRow
from flatout.nouns.trial import Measurement
from flatout.running.one.command import Command, script_sha256
from flatout.running.one.records import Process
from flatout.running.ranks.layout import RankLayout
from flatout.running.ranks.native import NativeStart
from flatout.tuning import native_look, native_trial, plan_file, rank_run, scaling_trial
from flatout_agent import wire

LOSSES = tuple(2.0 - 0.02 * step for step in range(20))
KEPT = NativeStart("accelerate")
OWN = NativeStart(wire.OWN_DDP)
GROUP = wire.RanksSeen(2, "gloo", native="accelerate")
BENCH = trial.Bench(Command(("python", "a.py"), None, "python", ("a.py",)), Path())


def measured(
    step_ms: float, losses: tuple[float | None, ...] = LOSSES, rate: float | None = None
) -> Measurement:
    return Measurement(step_ms, rate, tuple([step_ms] * 20), losses)


def outcome(figures: Measurement | None, seen: wire.RanksSeen | None = GROUP) -> RankOutcome:
    error = None if figures is not None else "ValueError: 5 % 2"
    return RankOutcome(figures, seen, None, error, "rank0/output.log")


def judged(how: NativeStart, of: RankOutcome, written: Measurement) -> ScalingRow:
    return native_trial.judged(scaling_trial.compared(2, written, of), written, of, how)


@pytest.mark.parametrize(
    ("seen", "scale", "starts", "told"),
    [
        (None, False, None, ""),
        (None, True, None, "--scale-batch changes nothing"),
        (wire.NativeSeen("lightning"), False, NativeStart("lightning"), ""),
        (wire.NativeSeen("lightning"), True, NativeStart("lightning", True), ""),
        (wire.NativeSeen("lightning", "it normalises"), False, None, "Lightning is not started"),
        (wire.NativeSeen("lightning", "it normalises"), True, NativeStart("lightning", True), ""),
        (wire.NativeSeen("ddp", "it numbers"), True, None, "DDP of its own is not started"),
    ],
)
def test_how_a_program_is_started(
    seen: wire.NativeSeen | None, scale: bool, starts: NativeStart | None, told: str
) -> None:
    lines: list[str] = []
    assert native_trial.start(seen, scale, lines.append) == starts
    assert told in "".join(lines)
    assert bool(lines) == bool(told)


@pytest.mark.parametrize(
    ("seen", "sizes", "starts", "told"),
    [
        (None, (1, 1), None, ""),
        (NativeProgram("accelerate", batches=(64, 8)), (2, 2), KEPT, ""),
        (NativeProgram("accelerate"), (1, 2), KEPT, ""),
        (NativeProgram("accelerate", batches=(64, 6)), (2, 2), None, "cannot divide a batch of 6"),
        (
            NativeProgram("accelerate", batches=(6,), scale_batch=True),
            (2, 2),
            NativeStart("accelerate", True),
            "",
        ),
        (NativeProgram("accelerate", "it normalises"), (1, 1), None, "it normalises"),
        (NativeProgram("lightning"), (2, 2), NativeStart("lightning"), ""),
        # Not even where the batch may grow.
        (NativeProgram("fabric", scale_batch=True), (1, 2), None, "here they have 1, 2"),
        (NativeProgram("ddp"), (1, 2), OWN, ""),
        (NativeProgram("ddp", "it numbers"), (1, 1), None, "it numbers"),
    ],
)
def test_how_all_nodes_start_a_program(
    seen: NativeProgram | None, sizes: tuple[int, ...], starts: NativeStart | None, told: str
) -> None:
    lines: list[str] = []
    assert native_trial.of_nodes(seen, sizes, lines.append) == starts
    assert told in "".join(lines)
    assert bool(lines) == bool(told)


class Look(NamedTuple):
    """What node 0 finds out, and what it says."""

    program: NativeProgram | None
    told: list[str]
    warned: list[str]
    trials: int


def look(
    monkeypatch: pytest.MonkeyPatch,
    script: Path,
    shows: Outcome | None,
    plan: Plan = Plan(()),  # noqa: B008 - frozen
    scale: bool = False,
) -> Look:
    """shows: what the one process shows; None: none may be tried."""
    told: list[str] = []
    warned: list[str] = []
    trials: list[trial.Bench] = []

    def run(bench: trial.Bench, *args: Any, **kwargs: Any) -> Outcome:
        trials.append(bench)
        assert shows is not None
        return shows

    monkeypatch.setattr(trial, "run", run)
    monkeypatch.setenv("SLURM_PROCID", "1")
    command = dataclasses.replace(BENCH.command, script=script)
    rest = 1, scale, shows is not None, 10.0, told.append, warned.append
    program = native_look.program(command, plan, *rest)
    assert all("SLURM_PROCID" not in (bench.variables or {}) for bench in trials)
    return Look(program, told, warned, len(trials))


def test_node_0_looks_once_where_it_may(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import torch")
    plain = look(monkeypatch, script, first(measured(10.0), None))
    assert plain == Look(None, [native_look.LOOK], [], 1)
    scaled = look(monkeypatch, script, first(measured(10.0), None), scale=True)
    assert scaled == Look(None, [native_look.LOOK, native_trial.UNSCALED], [], 1)
    shows = first(measured(10.0), wire.NativeSeen("lightning", batches=(8,)))
    lightning = NativeProgram("lightning", batches=(8,))
    assert look(monkeypatch, script, shows) == Look(lightning, [native_look.LOOK], [], 1)
    ranks = PlannedRanks(2, 2, script_sha256=script_sha256(script), native="ddp")
    remembered = look(monkeypatch, script, shows, Plan((), ranks=ranks))
    assert (remembered.program, remembered.trials) == (NativeProgram("ddp"), 0)


def test_where_node_0_may_not_look_the_script_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.distributed.init_process_group()")
    assert look(monkeypatch, script, None) == Look(NativeProgram("ddp"), [], [], 0)
    script.write_text("from accelerate import Accelerator")
    assert look(monkeypatch, script, None) == Look(None, [], [], 0)
    with pytest.raises(UserError, match="needs the trial"):
        look(monkeypatch, script, None, scale=True)


def test_a_look_that_shows_nothing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("import some_framework")
    failed = dataclasses.replace(first(None, None), process=None, error="KeyError: 'DATA'")
    seen = look(monkeypatch, script, failed)
    assert seen.program is None
    assert "divides the batches: KeyError: 'DATA'" in seen.warned[0]


def test_what_is_gained_is_samples_a_second_where_the_batch_grows() -> None:
    written = measured(10.0, rate=1000.0)
    row = judged(OWN, outcome(measured(12.0, rate=1700.0)), written)
    assert row.speedup == pytest.approx(1.7)
    assert row.interval == pytest.approx((1.7, 1.7))
    assert (row.losses, row.losses_reason) == (None, native_trial.OWN_BATCH)
    scaled = judged(NativeStart("fabric", True), outcome(measured(12.0, rate=1700.0)), written)
    assert scaled.losses_reason == "--scale-batch: the batch of all ranks is 2 times as large"
    assert scaled.native == "fabric"


def test_the_losses_count_where_the_batch_is_kept() -> None:
    same = judged(KEPT, outcome(measured(6.0)), measured(10.0))
    assert (same.losses, native_trial.fails(same, KEPT)) == ("exact", "")
    assert same.speedup == pytest.approx(10 / 6)
    other = judged(KEPT, outcome(measured(6.0, tuple(loss + 1 for loss in LOSSES))), measured(10.0))
    assert "off by" in native_trial.fails(other, KEPT)


def test_processes_that_made_no_group_trained_alone() -> None:
    alone = judged(OWN, outcome(measured(6.0), wire.RanksSeen(2, "")), measured(10.0))
    assert alone.error == native_trial.ALONE
    assert alone.speedup is None


class Trials:
    """In place of trials: what each would say."""

    def __init__(self, patch: pytest.MonkeyPatch, first: Outcome) -> None:
        self.started: list[tuple[int, str]] = []
        self.answers: dict[tuple[int, str], RankOutcome] = {}
        patch.setattr(trial, "run", lambda *args, **kwargs: first)
        patch.setattr(rank_trial, "run", self._run)

    def _run(self, bench: object, layout: RankLayout, *more: Any, **kwargs: Any) -> RankOutcome:
        key = layout.size, layout.native.framework if layout.native is not None else "rows"
        self.started.append(key)
        return self.answers[key]


def first(
    figures: Measurement | None, seen: wire.NativeSeen | None, returncode: int | None = None
) -> Outcome:
    process = Process(1) if figures is not None else None
    return Outcome(process, figures, None, True, True, returncode, "log", 1.0, native=seen)


def measure(told: list[str]) -> Any:
    machine = scaling_trial.RankMachine(8)
    return scaling_trial.measure(BENCH, RankLayout(2, 1, 1), (), machine, None, told.append)


def test_where_a_framework_learns_something_else_rows_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = Trials(monkeypatch, first(measured(10.0), wire.NativeSeen("accelerate")))
    trials.answers[2, "accelerate"] = outcome(None)
    trials.answers[2, "rows"] = outcome(measured(6.0))
    told: list[str] = []
    scaling = measure(told)
    assert trials.started == [(2, "accelerate"), (2, "rows")]
    assert (scaling.count, scaling.rows[0].native) == (2, "")
    assert any("flatout divides its batches instead: ValueError: 5 % 2" in line for line in told)


def test_a_framework_that_is_right_is_not_tried_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, first(measured(10.0), wire.NativeSeen("accelerate")))
    trials.answers[2, "accelerate"] = outcome(measured(6.0))
    scaling = measure([])
    assert trials.started == [(2, "accelerate")]
    assert scaling.chosen.native == "accelerate"


def test_a_script_that_demands_torchrun_has_a_baseline_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = Trials(monkeypatch, first(None, wire.NativeSeen(wire.OWN_DDP), returncode=1))
    trials.answers[1, "ddp"] = outcome(measured(10.0, rate=100.0))
    trials.answers[2, "ddp"] = outcome(measured(10.0, rate=190.0))
    scaling = measure([])
    assert trials.started == [(1, "ddp"), (2, "ddp")]
    assert (scaling.count, scaling.chosen.speedup) == (2, pytest.approx(1.9))


def test_a_program_too_short_for_a_trial_is_still_started_as_it_is_made_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = first(None, wire.NativeSeen("lightning"), returncode=0)
    Trials(monkeypatch, dataclasses.replace(short, process=Process(1)))
    assert measure([]) == scaling_trial.TooShort(NativeStart("lightning"))


def test_the_plan_remembers_how_it_is_started(tmp_path: Path) -> None:
    path, machine = tmp_path / "flatout.toml", Identity("Linux", "AMD EPYC", 8, 2**35)
    row = judged(NativeStart("fabric", True), outcome(measured(6.0)), measured(10.0))
    scaling = scaling_trial.chosen(2, 10.0, [row])
    layout = RankLayout(2, 1, 4)
    rank_run.write_plan(path, BENCH.command, scaling, layout, machine, scale_batch=True)
    plan = plan_file.read(path)
    assert plan.ranks is not None
    assert (plan.ranks.native, plan.ranks.scale_batch) == ("fabric", True)
    assert rank_run.remembered(plan, layout, machine, None, scale_batch=True) == 2
    assert rank_run.remembered(plan, layout, machine, None) is None  # another batch: another trial
    begin = rank_run.planned(
        BENCH.command, plan, (), layout, machine, print, print, scale_batch=True
    )
    assert begin.layout.native == NativeStart("fabric", True)


def test_without_a_trial_only_ddp_of_its_own_is_seen(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    command = dataclasses.replace(BENCH.command, script=script)
    for text, native in (
        ("dist.init_process_group('gloo')", OWN),
        ("# dist.init_process_group('gloo')", None),
        ("mp.spawn(main)\ndist.init_process_group('gloo')", None),
        ("def main():\n    if ranks > 1:\n        init_process_group('gloo')", OWN),
        ("Accelerator()", None),
    ):
        script.write_text(text)
        assert rank_run.untried(RankLayout(2, 1), command, False).layout.native == native
    with pytest.raises(UserError, match="needs the trial"):
        rank_run.untried(RankLayout(2, 1), command, True)


def test_losses_of_the_ranks_together() -> None:
    ranks = [SimpleNamespace(losses=(1.0, 2.0, None)), SimpleNamespace(losses=(3.0, 4.0, 1.0))]
    assert rank_trial.mean_losses(ranks, 2) == (2.0, 3.0, None)  # type: ignore[arg-type]
    # One of them was ended before it could tell.
    assert rank_trial.mean_losses([*ranks, SimpleNamespace(losses=())], 3) == ()  # type: ignore[list-item]
