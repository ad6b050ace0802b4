"""flatout run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from flatout.commands import SCRIPT_CONTEXT, _options, crash_explained, harmless, program, warn
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.reporting import document, explained, languages, terminal
from flatout.running import chosen, foreground, last_words, summary
from flatout.running.command import Command, resolve

if TYPE_CHECKING:
    from flatout.nouns.explained import Explained
    from flatout.nouns.tuned import Tuned
    from flatout.tuning.live_run import LiveTuning
    from flatout.watching.job_watch import JobWatch

PLACE = ("Speed up", 2)
CONTEXT = SCRIPT_CONTEXT
PLAN = Path("flatout.toml")


def command(
    ctx: typer.Context,
    plan: _options.PlanToRun = None,
    no_plan: _options.NoPlan = False,
    live: _options.Live = False,
    steps_left: _options.StepsLeft = None,
    exact: _options.Exact = False,
    only: _options.Only = None,
    skip: _options.Skip = None,
    python: _options.Python = None,
    as_json: _options.JsonBeside = False,
    quiet: _options.Quiet = False,
) -> int:
    """Run a script with its plan; --live tunes it while it trains.

    Applies the boosts in flatout.toml, the plan that flatout tune writes. Output, signals and exit
    code are those of the script, and a crash is explained. Without a plan the script runs
    unchanged.

    Examples:
      flatout run train.py --epochs 10
      flatout run --live train.py
      flatout run -m package.train
      flatout run -- torchrun --nproc-per-node 2 train.py
    """
    target = resolve(*program(ctx.args), python)
    applied = _plan(target, plan, no_plan, quiet or live)
    request = _Request(target, applied, plan or PLAN, python, as_json, quiet)
    if not live:
        return _run(request, chosen.choose(applied.boosts, only or (), skip or ()), None)
    from flatout.reporting.live import on_decision
    from flatout.tuning.live_run import LiveTuning

    tuning = LiveTuning(applied, (exact, only or (), skip or ()), steps_left, on_decision(quiet))
    return _run(request, tuning.boosts, tuning)


class _Request(NamedTuple):
    target: Command
    applied: Plan
    plan_path: Path
    python: str | None
    as_json: bool
    quiet: bool


def _run(request: _Request, boosts: Sequence[PlannedBoost], tuning: LiveTuning | None) -> int:
    variables: dict[str, str] = {}
    with harmless("the plan was not compared with this machine"):
        if boosts:
            from flatout.tuning import plan_use

            variables = plan_use.variables(request.applied, boosts, request.target, warn)
    stderr, live = last_words.StderrFile(), tuning.orders if tuning is not None else None
    orders, beside = chosen.orders(boosts), request.as_json
    watch = _watch(request, boosts)
    answer = tuned = None
    try:
        ended = foreground.run(
            request.target, orders, variables, warn, beside, None, tuning, live, watch
        )
        with harmless("the crash is not explained"):
            answer = crash_explained(ended, stderr.tail(), request.python)
            if answer is not None and not request.quiet:
                explained.crash(answer, languages.chosen(None))
    finally:
        with harmless("the history of this run is not complete"):
            if watch is not None:
                watch.close(_crash(answer))
    with harmless("the plan of this run is not written"):
        tuned = _close(tuning, request, ended.folder) if tuning is not None else None
    with harmless("this run has no summary"):
        end = summary.run_end(ended.records, [boost.id for boost in boosts], ended.followed)
        then = request.applied.machine.torch if request.applied.machine else None
        terminal.run_ended(end, then, ended.torch_versions, request.quiet)
        if request.as_json:
            ending = request.target.display, ended.shell_code, answer, tuned
            typer.echo(json.dumps(document.run_document(end, *ending)))
    return foreground.leave(ended.returncode)


def _watch(request: _Request, boosts: Sequence[PlannedBoost]) -> JobWatch | None:
    """What keeps the history and tells alerts; None where it cannot."""
    with harmless("the run is not watched"):
        from flatout.watching.job_watch import JobWatch

        names = tuple(boost.id for boost in boosts)
        return JobWatch(request.target.shown, names, warn)
    return None


def _crash(answer: Explained | None) -> tuple[str, str, tuple[str, ...]] | None:
    """What the first match says of a crash: title, cause, cures."""
    match = next(iter(answer.matches), None) if answer is not None else None
    return (
        None
        if match is None
        else (
            match.title.en,
            match.cause.en,
            tuple(step.text.en for step in match.cure),
        )
    )


def _plan(target: Command, path: Path | None, no_plan: bool, quiet: bool) -> Plan:
    if not no_plan and (path or PLAN.exists()):
        from flatout.tuning import plan_file

        return plan_file.read(path or PLAN)
    if not quiet and not no_plan:
        make = f"flatout run --live {target.shown}"
        warn(f"no {PLAN} here: it runs as written; to make it faster while it trains: {make}")
    return Plan(boosts=())


def _close(tuning: LiveTuning, request: _Request, folder: Path | None) -> Tuned | None:
    """Write plan and report of a run that was tuned while it trained, and tell the result."""
    from flatout.reporting import live

    tuned = tuning.write_plan(request.target, request.plan_path) if folder is not None else None
    return live.close(tuned, folder / "report.html", request.quiet) if tuned and folder else None
