"""flatout run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from flatout.commands import (
    SCRIPT_CONTEXT,
    _options,
    crash_explained,
    harmless,
    user_command,
    warn,
    warn_of_others,
)
from flatout.commands._several import BegunRanks, RankJob, asked_ranks, begun
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.reporting import document, explained, languages, terminal
from flatout.running.one import chosen_boosts, environment, foreground, last_words, summary
from flatout.running.one.command import Command
from flatout.running.ranks import endings

if TYPE_CHECKING:
    from flatout.nouns.explained import Explained
    from flatout.nouns.run_end import RunEnd
    from flatout.nouns.tuned import Tuned
    from flatout.tuning.live_run import LiveTuning

PLACE = ("Speed up", 2)
CONTEXT = SCRIPT_CONTEXT
PLAN = Path("flatout.toml")


def command(
    ctx: typer.Context,
    plan: _options.PlanToRun = None,
    no_plan: _options.NoPlan = False,
    live: _options.Live = False,
    steps_left: _options.StepsLeft = None,
    ranks: _options.Ranks = None,
    gpus: _options.Gpus = None,
    nodes: _options.Nodes = None,
    nodes_wait: _options.NodesWait = "10m",
    restarts: _options.Restarts = 0,
    no_trial: _options.NoTrial = False,
    scale_batch: _options.ScaleBatch = False,
    exact: _options.Exact = False,
    only: _options.Only = None,
    skip: _options.Skip = None,
    python: _options.Python = None,
    as_json: _options.JsonBeside = False,
    quiet: _options.Quiet = False,
) -> int:
    """Run a script with its plan; --live tunes it while it trains.

    Applies the boosts in flatout.toml, the plan that flatout tune writes. Output, signals and exit
    code are those of the script, and a crash is explained. Without a plan it runs unchanged.

    With --ranks or --gpus it trains on several devices, with --nodes on several machines.

    Examples:
      flatout run train.py --epochs 10
      flatout run --live train.py
      flatout run --gpus all -m package.train
      flatout run -- torchrun --nproc-per-node 2 train.py
    """
    target = user_command("run", ctx.args, python)
    several = ranks, gpus, nodes, nodes_wait, restarts, scale_batch, no_trial, no_plan
    asked = asked_ranks(live, *several)
    found = _plan(target, plan, no_plan, quiet or live or asked is not None), plan or PLAN
    request = _Request(target, *found, python, as_json, quiet)
    selection = (exact, only or (), skip or ())
    if live:
        from flatout.reporting.live import on_decision
        from flatout.tuning.live_run import LiveTuning

        decided = on_decision(quiet)
        tell = (lambda line: None) if quiet else terminal.say
        tuning = LiveTuning(request.applied, selection, steps_left, decided, tell)
        if not quiet:
            warn_of_others()
            terminal.say("tuning while it trains: a line for each decision, at least one a minute")
        return _run(request, tuning.boosts, tuning)
    boosts = chosen_boosts.choose(request.applied.boosts, *selection[1:])
    if asked is None:
        return _run(request, boosts)
    request = request._replace(warned=asked.nodes is not None)
    job = RankJob(request.target, request.applied, boosts, request.plan_path, request.quiet)
    with begun(job, asked) as begun_ranks:
        if begun_ranks is not None and not begun_ranks.heard:
            request = request._replace(quiet=True, as_json=False)
        return _run(request, boosts, None, begun_ranks)


class _Request(NamedTuple):
    target: Command
    applied: Plan
    plan_path: Path
    python: str | None
    as_json: bool
    quiet: bool
    warned: bool = False
    """Whether a cluster may announce the end by a signal."""


def _run(
    request: _Request,
    boosts: Sequence[PlannedBoost],
    tuning: LiveTuning | None = None,
    ranks: BegunRanks | None = None,
) -> int:
    variables = environment.warned() if request.warned else {}
    with harmless("the plan was not compared with this machine"):
        if boosts:
            from flatout.tuning import plan_use

            variables |= plan_use.variables(request.applied, boosts, request.target, warn)
    stderr, live = last_words.StderrFile(), tuning.orders if tuning is not None else None
    orders, beside = chosen_boosts.orders(boosts), request.as_json
    watch = answer = tuned = None
    with harmless("the run is not watched"):
        from flatout.watching.job_watch import JobWatch

        watch = JobWatch(request.target.shown, tuple(boost.id for boost in boosts), warn)
    try:
        settings = request.target, orders, variables, warn, beside, None, tuning, live, watch
        ended = foreground.run(*settings, ranks and ranks.group)
        with harmless("the crash is not explained"):
            answer = _explained(ended, stderr.tail(), request.python, ranks)
            if answer is not None and not request.quiet:
                explained.crash(answer, languages.chosen(None))
    finally:
        with harmless("the history of this run is not complete"):
            if watch is not None:
                crash = None
                if answer is not None and answer.matches:
                    match = answer.matches[0]
                    cures = tuple(step.text.en for step in match.cure)
                    crash = match.title.en, match.cause.en, cures
                watch.close(crash)
    with harmless("the plan of this run is not written"):
        tuned = _close(tuning, request, ended.folder) if tuning is not None else None
    with harmless("this run has no summary"):
        end = _told(request, ended, boosts, ranks)
    if ranks is not None and (again := ranks.again()) is not None:
        return _run(request, boosts, None, again)
    with harmless("this run has no document"):
        if request.as_json:
            ending = request.target.display, ended.shell_code, answer, tuned
            typer.echo(json.dumps(document.run_document(end, *ending)))
    if ranks is not None:
        ranks.group.check_refusal(ended.records)
    return foreground.leave(ended.returncode)


def _explained(
    ended: foreground.Finished, stderr: bytes, python: str | None, ranks: BegunRanks | None
) -> Explained | None:
    """The cause of the program's end; with several ranks, that of the first to end."""
    if ranks is None:
        return crash_explained(ended, stderr, python)
    failure = ranks.group.failure
    if failure is None or failure.ending != "error":
        return None
    records, text = ranks.group.last_words(ended.records, stderr)
    return crash_explained(dataclasses.replace(ended, records=records), text, python)


def _told(
    request: _Request,
    ended: foreground.Finished,
    boosts: Sequence[PlannedBoost],
    ranks: BegunRanks | None,
) -> RunEnd:
    """The figures of the run, reported to the user."""
    end = summary.run_end(ended.records, [boost.id for boost in boosts], ended.followed)
    if ranks is not None and ranks.group.layout.total > 1:
        group = ranks.group
        native = group.layout.native.framework if group.layout.native is not None else ""
        parts = group.layout.total, group.failure, ranks.scaling, native
        # If the others lost the rank that failed, that is not an error of ours.
        faults = () if group.failure is not None else end.faults
        together = endings.ranks_end(ended.records, *parts)
        if ranks.scaling is not None and ended.folder is not None:
            endings.write_trial(ranks.scaling, ended.folder)
        end = dataclasses.replace(end, ranks=together, faults=faults)
    end = dataclasses.replace(end, interrupted=ended.interrupted)
    then = request.applied.machine.torch if request.applied.machine else None
    terminal.other_torch(then, ended.torch_versions)
    terminal.run_ended(end, request.quiet)
    if end.ranks is not None and end.steps and not request.quiet:
        from flatout.reporting import ranks as report

        report.ended(end.ranks)
    return end


def _plan(target: Command, path: Path | None, no_plan: bool, quiet: bool) -> Plan:
    if not no_plan and (path or PLAN.exists()):
        from flatout.tuning import plan_file

        return plan_file.read(path or PLAN, warn)
    if not quiet and not no_plan:
        make = f"flatout run --live {target.shown}"
        warn(f"no {PLAN} here, so the script runs as written; to tune it while it trains: {make}")
    return Plan(boosts=())


def _close(tuning: LiveTuning, request: _Request, folder: Path | None) -> Tuned | None:
    """Write plan and report of a run that was tuned while it trained, and tell the result."""
    from flatout.reporting import live

    if folder is None:
        return None
    tuned = tuning.write_plan(request.target, request.plan_path, folder, warn)
    return live.close(tuned, folder / "report.html", request.quiet) if tuned else None
