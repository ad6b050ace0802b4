"""flatout profile."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.commands import SCRIPT_CONTEXT, program
from flatout.nouns.errors import UserError

if TYPE_CHECKING:
    from flatout.profiling.recording import Recorded

CONTEXT = SCRIPT_CONTEXT


def command(
    ctx: typer.Context,
    steps: Annotated[int, typer.Option(min=1, help="Steps recorded for their times.")] = 6,
    stop: Annotated[bool, typer.Option("--stop", help="End the script after the window.")] = False,
    skip: Annotated[str, typer.Option(help="Record only after this time: 60s, 2m.")] = "0s",
    plan: Annotated[Path | None, typer.Option(help="Run the script with this plan.")] = None,
    trace: Annotated[list[Path] | None, typer.Option(help="Traces to analyse; no script.")] = None,
    compare: Annotated[Path | None, typer.Option(help="This profile beside the next.")] = None,
    out: Annotated[Path | None, typer.Option(help="Copy the traces here for TensorBoard.")] = None,
    fail_over: Annotated[str, typer.Option(help="Exit 1 for a finding worth more.")] = "10%",
    no_bench: Annotated[bool, typer.Option("--no-bench", help="Measure no ceilings.")] = False,
    python: Annotated[str | None, typer.Option(help="The Python that runs the script.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON document on stdout.")] = False,
) -> int:
    """See where each step's time goes and what to change: file, line, and what it would gain.

    flatout profile [options] train.py [the script's own arguments]
    flatout profile [options] -- torchrun --nproc-per-node 2 train.py
    flatout profile --trace rank0.json.gz [rank1.json.gz ...]
    flatout profile --compare before.json after.json
    """
    from flatout.profiling import recording
    from flatout.profiling.settings import Lines, seconds, share
    from flatout.running.command import resolve

    if compare is not None:
        return _compare([compare, *map(Path, ctx.args)], as_json)
    most = share(fail_over)
    if trace:
        return _report(recording.from_traces([*trace, *map(Path, ctx.args)]), most, as_json, out)
    what = resolve(*program(ctx.args), python)
    asked = recording.Settings(steps, seconds(skip), stop, not no_bench, as_json, **_planned(plan))
    codes: list[int] = []
    recording.record(
        what, asked, Lines(), lambda made: codes.append(_report(made, most, as_json, out))
    )
    return max(codes)


def _report(recorded: Recorded, most: float, as_json: bool, out: Path | None) -> int:
    """Diagnose, write the report beside the run's records and tell; 1: a finding is worth more."""
    from flatout.diagnosing import checks
    from flatout.diagnosing.diagnose import diagnose_profile
    from flatout.nouns.profile import Profiled
    from flatout.reporting import tensorboard, terminal
    from flatout.reporting.profile import document as profile_document
    from flatout.reporting.profile import html
    from flatout.running import folder

    here = recorded.folder or folder.fresh("profile")
    page, notes = here / "report.html", recorded.notes
    found, asked = diagnose_profile(recorded.profile), len(checks.JOB.files())
    paths = str(here), str(page)
    told = Profiled(recorded.profile, found, notes, most, asked, recorded.wall_s, *paths)
    document = json.dumps(profile_document.document(told), indent=2) + "\n"
    (here / "profile.json").write_text(document, encoding="utf-8")
    html.write_report(told, page)
    if out is not None:
        tensorboard.profile(told, out, recorded.traces)
    if as_json:
        sys.stdout.write(document)
    else:
        terminal.profile(told)
    return int(told.largest_gain > most)


def _planned(path: Path | None) -> dict[str, Any]:
    """The boosts of a plan, and the variables that they need."""
    if path is None:
        return {}
    from flatout.probing.identity import identity
    from flatout.running import chosen
    from flatout.tuning import plan_file

    plan = plan_file.read(path)
    boosts, here = chosen.choose(plan.boosts), identity()
    variables = chosen.environment(boosts, plan.job, here)
    return {"boosts": chosen.orders(boosts), "variables": variables}


def _compare(paths: list[Path], as_json: bool) -> int:
    from flatout.reporting.profile import compare as profile_compare
    from flatout.reporting.profile import compare_screen
    from flatout.reporting.profile import document as profile_document

    if len(paths) != 2:
        raise UserError("--compare needs two profiles", "flatout profile --compare A.json B.json")
    files = [path / "profile.json" if path.is_dir() else path for path in paths]
    found = profile_compare.compare(*map(profile_document.load, files))
    if as_json:
        sys.stdout.write(json.dumps(profile_compare.document(found), indent=2) + "\n")
    else:
        compare_screen.compared(found, (str(paths[0]), str(paths[1])))
    return 0
