"""flatout profile."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.commands import SCRIPT_CONTEXT, _options, duration, expanded, threshold, user_command
from flatout.nouns.errors import UserError
from flatout.nouns.observer import Silent

if TYPE_CHECKING:
    from flatout.profiling.recording import ProfileSettings, Recorded

PLACE = ("Understand", 1)
CONTEXT = SCRIPT_CONTEXT
USAGE = "[OPTIONS] SCRIPT [ARGS]... | TRACE..."
DEFAULT_LIMIT = "10%"
SCRIPT_ONLY = ("steps", "skip", "stop", "plan", "no_bench", "python")
"""Options without meaning for a trace, which is already recorded."""

Steps = Annotated[int, typer.Option(metavar="N", min=1, help="Number of steps to record.")]
After = Annotated[
    str,
    typer.Option("--skip", metavar="TIME", help="Wait for this long before recording: 60s or 2m."),
]
Stop = Annotated[bool, typer.Option("--stop", help="End the script after the recording.")]
Planned = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE", help="Run the script with this plan.")
]
NoBench = Annotated[
    bool,
    typer.Option("--no-bench", help="Do not measure the hardware or time matrix products again."),
]
FailAbove = Annotated[
    str,
    typer.Option(
        metavar="SHARE",
        help="Exit with 1 if a finding saves more than this share of the step: 10% or 0.1.",
    ),
]


def command(
    ctx: typer.Context,
    steps: Steps = 6,
    skip: After = "0s",
    stop: Stop = False,
    plan: Planned = None,
    no_bench: NoBench = False,
    python: _options.Python = None,
    fail_above: FailAbove = DEFAULT_LIMIT,
    as_json: _options.Json = False,
) -> int:
    """Show where each training step's time goes and what to change.

    Records a few steps of the running script, or reads traces that torch.profiler wrote. Each
    finding names the line of code, the change and the time that it saves. An HTML report is written
    as well.

    Examples:
      flatout profile train.py --epochs 10
      flatout profile --stop -- torchrun --nproc-per-node 2 train.py
      flatout profile rank0.pt.trace.json.gz rank1.pt.trace.json.gz
    """
    from flatout.profiling.trace import recognising

    if ctx.args and recognising.is_trace(expanded(ctx.args[:1])[0]):
        return _traces(ctx)
    limit = threshold("--fail-above", fail_above)
    from flatout.profiling import recording
    from flatout.profiling.recording import ProfileSettings

    target = user_command("profile", ctx.args, python)
    skip_s = duration("--skip", skip, zero=True)
    settings = ProfileSettings(steps, skip_s, stop, not no_bench, as_json)
    settings = _with_plan(settings, plan)
    codes: list[int] = []

    def report(recorded: Recorded) -> None:  # as soon as the window is recorded
        codes.append(_report(recorded, limit, as_json))

    recording.record(target, settings, _Lines(), report)
    return max(codes)


class _Lines(Silent):
    """Writes a line to stderr for each part of the work."""

    def phase(self, text: str) -> None:
        with suppress(OSError, AttributeError):  # stderr may be closed: no reason not to run
            sys.stderr.write(f"flatout: {text}\n")
            sys.stderr.flush()


def _traces(ctx: typer.Context) -> int:
    """Report on traces, which options may follow too."""
    from flatout.profiling import recording

    later = ctx.command.make_context(
        ctx.info_name,
        list(ctx.args),
        ctx.parent,
        allow_interspersed_args=True,
        ignore_unknown_options=False,
    )
    options = {**_typed_options(ctx), **_typed_options(later)}
    words = expanded(later.args)
    _check_traces(words, [name for name in SCRIPT_ONLY if name in options])
    limit = threshold("--fail-above", options.get("fail_above", DEFAULT_LIMIT))
    recorded = recording.from_traces([Path(word) for word in words])
    return _report(recorded, limit, options.get("as_json", False))


def _typed_options(ctx: Any) -> dict[str, Any]:
    """The options on the command line, except those with their default."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {
        name: ctx.params[name]
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }


def _check_traces(words: Sequence[str], script_only: Sequence[str]) -> None:
    """Raise UserError for words that are not traces, and for options that need a script."""
    from flatout.profiling.trace import recognising

    for word in words:
        if not recognising.is_trace(word):
            message = f"{words[0]} is a trace, {word} is not"
            raise UserError(message, "name one script, or traces alone: flatout profile --help")
        if not Path(word).exists():
            raise UserError(f"there is no trace {word} in {Path.cwd()}", "check the path")
        schema = recognising.document(Path(word))
        if schema == "flatout.profile":
            raise UserError(
                f"{word} is a finished profile, not a trace",
                f"compare it with another one: flatout compare {word} after.json",
            )
        if schema is not None:
            raise UserError(f"{word} is a {schema} document, not a trace")
    if script_only:
        option = f"--{script_only[0].replace('_', '-')}"
        message = f"{option} needs a script to run, and {words[0]} is a trace"
        raise UserError(message, f"leave {option} out")


def _report(recorded: Recorded, most: float, as_json: bool) -> int:
    """Diagnose, write the report and print it; 1 if a finding saves more than `most`."""
    from flatout.diagnosing import checks
    from flatout.diagnosing.diagnose import diagnose_profile
    from flatout.nouns.profile import Profiled
    from flatout.reporting import terminal
    from flatout.reporting.profile import document, html
    from flatout.running.one import folder

    run_folder = recorded.folder or folder.fresh("profile")
    page, notes = run_folder / "report.html", recorded.notes
    findings, count = diagnose_profile(recorded.profile), len(checks.JOB.files())
    paths = str(run_folder), str(page)
    profiled = Profiled(recorded.profile, findings, notes, most, count, recorded.wall_s, *paths)
    text = json.dumps(document.document(profiled), indent=2) + "\n"
    (run_folder / "profile.json").write_text(text, encoding="utf-8")
    html.write_report(profiled, page)
    if as_json:
        sys.stdout.write(text)
    else:
        terminal.profile(profiled)
    return int(profiled.largest_gain > most)


def _with_plan(settings: ProfileSettings, path: Path | None) -> ProfileSettings:
    """The settings with a plan's boosts and the variables that they need."""
    if path is None:
        return settings
    from flatout.probing.identity import identity
    from flatout.reporting import terminal
    from flatout.running.one import chosen_boosts
    from flatout.tuning import plan_file

    plan = plan_file.read(path, terminal.warn)
    boosts = chosen_boosts.choose(plan.boosts)
    variables = chosen_boosts.environment(boosts, plan.job, identity())
    return dataclasses.replace(settings, boosts=chosen_boosts.orders(boosts), variables=variables)
