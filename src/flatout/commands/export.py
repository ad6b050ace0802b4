"""flatout export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from flatout.nouns.errors import UserError

if TYPE_CHECKING:
    from flatout.nouns.exported import ExportResult, ExportSettings

PLACE = ("Speed up", 5)
CONTEXT = SCRIPT_CONTEXT
DEFAULT_OUT = Path("exported")

Out = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", help="Where the exported model goes.")
]
For = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="GOAL",
        help="What to optimise for: latency, throughput or size.",
    ),
]
Exact = Annotated[bool, typer.Option("--exact", help="Keep float32 arithmetic.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="int8",
        help="Allow quantised builds that keep 99 % of the accuracy.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="BACKEND", help="Try only this. Repeatable."),
]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="BACKEND", help="Do not try this. Repeatable."),
]
Capture = Annotated[
    Path | None,
    typer.Option(
        "--capture",
        metavar="FOLDER",
        help="Export the capture of an earlier export; the script is not run.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Load this checkpoint (FILE or FILE#ENTRY) instead of training to the end.",
    ),
]
Model = Annotated[
    str,
    typer.Option("--model", metavar="CLASS", help="Which of the script's models to export."),
]
Limit = Annotated[str, typer.Option("--limit", metavar="TIME", help="Time for each build.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", min=1, help="Threads for each call.  [default: the usable cores]"
    ),
]


def command(
    ctx: typer.Context,
    out: Out = DEFAULT_OUT,
    goal: For = "latency",
    exact: Exact = False,
    allow: Allow = None,
    only: Only = None,
    skip: Skip = None,
    weights: Weights = "",
    model: Model = "",
    capture: Capture = None,
    limit: Limit = "5m",
    threads: Threads = None,
    python: _options.Python = None,
    as_json: _options.Json = False,
) -> int:
    """Compile a script's model for serving; keep the fastest right build.

    Takes the model and its inputs from the running script, builds it with every installed backend,
    compares with eager float32, times each build, and keeps one: a folder with load.py.

    Examples:
      flatout export train.py
      flatout export --exact --for throughput train.py --epochs 1

    Exit code: 0 if a build was kept, 1 if none could be verified, 2 for wrong usage.
    """
    from flatout.reporting import export as report

    settings = _settings(ctx.params)
    request = {"weights": weights, "model": model, "beside": as_json}
    result = _exported(ctx.args, capture, settings, python, request)
    if as_json:
        print_document(report.export_document(result))
    else:
        report.show_export(result)
    return 0 if result.chosen is not None else 1


def _settings(options: dict[str, Any]) -> ExportSettings:
    """How to export, from the options of `command`."""
    from flatout.nouns.exported import ExportSettings, Goal
    from flatout.running.one.command import chosen_python

    goal = options["goal"]
    if goal not in set(Goal):
        raise UserError(f"--for {goal!r} is not a goal", "--for latency, throughput or size")
    allow, only, skip = (tuple(options[name] or ()) for name in ("allow", "only", "skip"))
    return ExportSettings(
        chosen_python(options["python"]),
        options["out"],
        Goal(goal),
        options["exact"],
        allow,
        only,
        skip,
        build_limit_s=duration("--limit", options["limit"]),
        threads=options["threads"],
    )


def _exported(
    words: list[str],
    capture: Path | None,
    settings: ExportSettings,
    python: str | None,
    request: dict[str, Any],
) -> ExportResult:
    """Capture if requested, then export."""
    from flatout.exporting import artefact, candidates, capturing, export
    from flatout.nouns.captured import CaptureRequest
    from flatout.reporting import terminal
    from flatout.reporting.export import ExportView

    candidates.plans(settings)  # report a wrong word before the script runs for an hour
    artefact.check_target(settings.out)
    if capture is None and not words:
        raise UserError("export needs a script", "flatout export train.py")
    if capture is not None and words:
        raise UserError("--capture runs no script", f"flatout export --capture {capture}")
    if capture is None:
        terminal.say("running the script to capture its model and inputs")
        resolved = user_command("export", words, python)
        capture = capturing.capture(resolved, CaptureRequest(**request), warn).folder
    warn_of_others()
    with ExportView() as view:
        return export.run(capture, settings, view.step)
