"""flatout tune."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.commands import (
    SCRIPT_CONTEXT,
    _options,
    duration,
    print_document,
    user_command,
    warn,
    warn_of_others,
)
from flatout.nouns.errors import INTERRUPTED, UserError

if TYPE_CHECKING:
    from flatout.nouns.tuned import Tuned

PLACE = ("Speed up", 1)
CONTEXT = SCRIPT_CONTEXT

Budget = Annotated[
    str, typer.Option(metavar="TIME", help="Time for the whole search: 90s, 10m or 1h.")
]
WindowSteps = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=3,
        help="Steps in each final measurement.  [default: what fits in a second]",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Random seed of every trial.")]
Why = Annotated[bool, typer.Option("--why", help="Say at the end why each boost was left out.")]
PlanToWrite = Annotated[Path, typer.Option(metavar="FILE", help="Write the plan to this file.")]


def command(
    ctx: typer.Context,
    budget: Budget = "10m",
    plan: PlanToWrite = Path("flatout.toml"),
    exact: _options.Exact = False,
    only: _options.Only = None,
    skip: _options.Skip = None,
    steps_left: _options.StepsLeft = None,
    steps: WindowSteps = None,
    seed: Seed = 0,
    python: _options.Python = None,
    why: Why = False,
    as_json: _options.Json = False,
) -> int:
    """Find the speed-ups that work for a script, and write a plan.

    Runs the script for a while, switches speed-ups (called boosts) on and off between its steps,
    and keeps those that are faster and learn the same. Files that the script saves are discarded.

    Examples:
      flatout tune train.py --epochs 10
      flatout tune --budget 5m --exact train.py
      flatout tune -m package.train
      flatout tune -- torchrun --nproc-per-node 2 train.py

    Exit code: 0 if a plan was written, 1 if nothing is faster, 2 if nothing could be tried.
    """
    from flatout.reporting.terminal import TuneView
    from flatout.running.one import folder
    from flatout.tuning import candidates, plan_file, tune

    resolved = user_command("tune", ctx.args, python)
    # Say that the plan cannot be written before the search, not after it.
    if plan.is_dir():
        raise UserError(f"--plan {plan} is a folder", f"name a file: --plan {plan / 'plan.toml'}")
    if not plan.absolute().parent.is_dir():
        raise UserError(f"--plan {plan}: there is no folder {plan.parent}", "make it first")
    choice = candidates.Allowance(exact, tuple(only or ()), tuple(skip or ()))
    settings = tune.TuneSettings(duration("--budget", budget), steps, seed, steps_left=steps_left)
    run_folder = folder.fresh("tune")
    warn_of_others()
    with TuneView() as observer:
        tuned = tune.tune(resolved, choice, settings, run_folder, observer)
    if tuned.plan is not None:
        written = plan_file.write_or_keep(tuned.plan, plan, run_folder, warn)
        tuned = dataclasses.replace(tuned, plan_path=str(written))
    return _report(tuned, run_folder / "report.html", why, as_json)


def _report(tuned: Tuned, path: Path, why: bool, as_json: bool) -> int:
    """Write the HTML report and tell the result; 0: a plan was written, 1: nothing is faster.

    2: nothing could be tried in the given time, 130: interrupted before there was a plan.
    """
    from flatout.reporting import document, html, terminal

    try:
        html.write_report(tuned, path)
        tuned = dataclasses.replace(tuned, report_path=str(path))
    except (OSError, ImportError) as error:
        terminal.warn(f"the report could not be written: {error}")
    if as_json:
        print_document(document.tune_document(tuned))
    else:
        terminal.summary(tuned, why=why)
    if tuned.interrupted and not tuned.plan_path:
        return INTERRUPTED
    return 0 if tuned.plan_path else 1 if tuned.tried else 2
