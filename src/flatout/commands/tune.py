"""flatout tune."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from flatout import commands
from flatout.commands import SCRIPT_CONTEXT, program
from flatout.nouns.errors import UserError
from flatout.nouns.plan import Plan
from flatout.nouns.tuned import Tuned

CONTEXT = SCRIPT_CONTEXT


def command(
    ctx: typer.Context,
    budget: Annotated[str, typer.Option(help="Time for all of it: 90s, 10m, 1h.")] = "10m",
    exact: commands.Exact = False,
    allow: Annotated[
        list[str] | None, typer.Option(help="A boost that changes what is computed: batch-size.")
    ] = None,
    only: commands.Only = None,
    skip: commands.Skip = None,
    steps: Annotated[int | None, typer.Option(min=3, help="Measured steps per window.")] = None,
    steps_left: commands.StepsLeft = None,
    seed: Annotated[int, typer.Option(help="Seed of every trial.")] = 0,
    plan: Annotated[Path, typer.Option(help="Where the plan is written.")] = Path("flatout.toml"),
    python: commands.Python = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Find what makes a training script faster without an edit, and check that it learns the same.

    flatout tune [options] train.py [the script's own arguments]
    flatout tune [options] -m package.module ...
    flatout tune [options] -- torchrun --nproc-per-node 2 train.py
    """
    from flatout.reporting.terminal import TuneView
    from flatout.running import command as command_line
    from flatout.running import folder
    from flatout.tuning import candidates, plan_file, tune

    resolved = command_line.resolve(*program(ctx.args), python)
    _check_place(plan)
    choice = candidates.Choice(exact, tuple(allow or ()), tuple(only or ()), tuple(skip or ()))
    asked, here = (
        tune.Settings(tune.seconds(budget), steps, seed, steps_left=steps_left),
        folder.fresh("tune"),
    )
    with TuneView() as observer:
        tuned = tune.tune(resolved, choice, asked, here, observer)
    tuned = _with_plan(tuned, plan, here, plan_file.write)
    return _report(tuned, here / "report.html", as_json)


def _check_place(plan: Path) -> None:
    """Raise UserError where the plan has no place: before the search, not after it."""
    if plan.is_dir():
        raise UserError(f"--plan {plan} is a folder", f"name a file: --plan {plan / 'plan.toml'}")
    if not plan.absolute().parent.is_dir():
        raise UserError(f"--plan {plan}: there is no folder {plan.parent}", "make it first")


def _with_plan(
    tuned: Tuned, path: Path, run_folder: Path, write: Callable[[Plan, Path], None]
) -> Tuned:
    """Write the plan, beside the report where it cannot be at `path`: it took minutes to find.

    write: imported before those minutes, in case what it needs is not installed.
    """
    from flatout.reporting import terminal

    if tuned.plan is None:
        return tuned
    try:
        write(tuned.plan, path)
    except UserError as error:
        path = run_folder / path.name
        write(tuned.plan, path)
        terminal.warn(f"{error.message}; it is at {path}: flatout run --plan {path} ...")
    return dataclasses.replace(tuned, plan_path=str(path))


def _report(tuned: Tuned, path: Path, as_json: bool) -> int:
    """Write the HTML report and tell the result; 0: a plan was written, 1: nothing is faster.

    2: nothing could be tried in the time that was given.
    """
    from flatout.reporting import document, html, terminal

    try:
        html.write_report(tuned, path)
        tuned = dataclasses.replace(tuned, report_path=str(path))
    except (OSError, ImportError) as error:
        terminal.warn(f"the report could not be written: {error}")
    if as_json:
        json.dump(document.tune_document(tuned), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        terminal.summary(tuned)
    return 0 if tuned.plan_path else 1 if tuned.tried else 2
