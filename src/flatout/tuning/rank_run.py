"""A run on several ranks: how many, after which trial, and what the plan remembers of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from flatout.measuring.trial import Bench
from flatout.nouns.errors import UserError
from flatout.nouns.identity import Identity
from flatout.nouns.plan import Plan, PlannedBoost, PlannedRanks
from flatout.nouns.ranks import Scaling
from flatout.running.one import folder
from flatout.running.one.command import Command, script_sha256
from flatout.running.ranks import endings
from flatout.running.ranks.layout import RankLayout, fewer
from flatout.running.ranks.native import NativeStart, starts_group
from flatout.tuning import plan_file, scaling_trial
from flatout.tuning.scaling_trial import RankMachine, TooShort
from flatout_agent import wire

TOO_SHORT = "the script is too short for a trial of ranks: it trains on all of them without one"
NEEDS_TRIAL = "--scale-batch needs the trial, which shows whose loaders the script uses"


@dataclass(frozen=True)
class RankPlan:
    """How a run on several ranks begins."""

    layout: RankLayout
    scaling: Scaling | None = None
    """The trial before it, or None if there was none."""


def planned(
    command: Command,
    plan: Plan,
    boosts: tuple[PlannedBoost, ...],
    layout: RankLayout,
    machine: Identity,
    report: Callable[[str], None],
    warn: Callable[[str], None],
    scale_batch: bool = False,
) -> RankPlan:
    """What the plan remembers, else a trial. Raises UserError if ranks do not pay.

    report: called with a line on what is tried; warn: with what the user should know; scale_batch:
    whether a framework may give each rank a whole batch.
    """
    cores = machine.cores or layout.size
    known = remembered(plan, layout, machine, script_sha256(command.script), scale_batch)
    if known is not None:
        chosen, ranks = fewer(layout, known, cores), plan.ranks
        if ranks is not None and ranks.native:
            chosen = replace(chosen, native=NativeStart(ranks.native, bool(ranks.scale_batch)))
        return RankPlan(chosen)
    run_folder = folder.fresh("ranks")
    cache = folder.compile_cache(run_folder)
    alone = RankLayout(1, layout.seed).orders(0, Path(), "", str(Path.cwd()))
    bench = Bench(command, run_folder, layout.seed, min_steps=8, compile_cache=cache, ranks=alone)
    own = RankMachine(cores, machine.memory_bytes)
    job = layout, boosts, own, plan.job, report, scale_batch
    measured = scaling_trial.measure(bench, *job)
    if isinstance(measured, TooShort):
        warn(TOO_SHORT)
        return RankPlan(replace(layout, native=measured.native))
    with suppress(OSError):
        endings.write_trial(measured, run_folder)
    best = measured.chosen
    if best is None:
        return RankPlan(layout, measured)
    native = NativeStart(best.native, scale_batch) if best.native else None
    return RankPlan(replace(fewer(layout, best.size, cores), native=native), measured)


def untried(layout: RankLayout, command: Command, scale_batch: bool) -> RankPlan:
    """A run without a trial: rows are cut, unless a script starts its processes itself.

    Raises UserError if the batch is to grow: only a trial shows a script's framework.
    """
    if scale_batch:
        raise UserError(NEEDS_TRIAL, "leave out --no-trial")
    own = starts_group(command.script)
    return RankPlan(replace(layout, native=NativeStart(wire.OWN_DDP) if own else None))


def remembered(
    plan: Plan,
    layout: RankLayout,
    machine: Identity,
    script: str | None,
    scale_batch: bool = False,
) -> int | None:
    """The ranks chosen by an earlier trial of the same script and machine, or None."""
    ranks = plan.ranks
    if ranks is not None and bool(ranks.scale_batch) != scale_batch:
        return None
    if ranks is None or not ranks.count or not 2 <= ranks.count <= layout.size:
        return None
    if ranks.asked != layout.size or ranks.machine != described(layout, machine):
        return None
    return ranks.count if script is None or ranks.script_sha256 == script else None


def described(layout: RankLayout, machine: Identity) -> str:
    """The machine that a trial of ranks holds for: "2 cores of AMD EPYC 9B45"."""
    if layout.gpus:
        names = sorted({gpu.name for gpu in machine.gpus})
        return f"{len(layout.gpus)} x {', '.join(names)}"
    return f"{machine.cores} cores of {machine.cpu or 'an unknown processor'}"


def write_plan(
    path: Path,
    command: Command,
    scaling: Scaling,
    layout: RankLayout,
    on: Identity,
    scale_batch: bool = False,
) -> None:
    """Put the trial into the plan at `path`, or into a new one. Raises UserError."""
    row = scaling.chosen
    if row is None:
        return
    ranks = PlannedRanks(
        asked=scaling.asked,
        count=row.size,
        speedup=row.speedup,
        interval=row.interval,
        efficiency=row.efficiency,
        losses=row.losses,
        machine=described(layout, on),
        script_sha256=script_sha256(command.script),
        native=row.native or None,
        scale_batch=scale_batch or None,
    )
    if path.exists():
        plan_file.write_ranks(ranks, path)
        return
    created = datetime.now(UTC).isoformat(timespec="seconds")
    new = Plan((), command.display, script_sha256(command.script), on, created=created, ranks=ranks)
    plan_file.write(new, path)


def check(
    ranks: int | None,
    gpus: str | None,
    live: bool,
    nodes: str | None = None,
    scale_batch: bool = False,
) -> bool:
    """Whether several ranks are requested. Raises UserError for options that do not go together."""
    if ranks is not None and gpus is not None:
        raise UserError("--ranks and --gpus both set the number of ranks", "give one of them")
    asked = ranks is not None or gpus is not None or nodes is not None
    if scale_batch and not asked:
        raise UserError(
            "--scale-batch needs several ranks",
            "name them: --gpus all --scale-batch",
        )
    if asked and live:
        raise UserError(
            "--live tunes one process; it does not go together with --ranks, --gpus and --nodes",
            "tune it on one process first: flatout tune train.py",
        )
    return asked
