"""flatout run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flatout.commands import SCRIPT_CONTEXT, harmless, look_here, program, warn
from flatout.nouns.explained import Explained
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.nouns.run_end import RunEnd
from flatout.reporting import document, explained, languages, terminal
from flatout.running import chosen, foreground, last_words, summary
from flatout.running.command import Command, resolve, script_sha256

CONTEXT = SCRIPT_CONTEXT
PLAN = Path("flatout.toml")


def command(
    ctx: typer.Context,
    plan: Annotated[Path | None, typer.Option(help=f"The plan; {PLAN} if it is here.")] = None,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="As written, but watched.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="This boost alone; repeatable.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Not this boost; repeatable.")] = None,
    python: Annotated[str | None, typer.Option(help="The Python that runs the script.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON document on stdout, the script's own to stderr.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")] = False,
) -> int:
    """Run a training script with its plan; output, signals and exit code are the script's own.

    flatout run [options] train.py [the script's own arguments]
    flatout run [options] -m package.module ...
    flatout run [options] -- torchrun --nproc-per-node 2 train.py
    """
    what = resolve(*program(ctx.args), python)
    applied = _plan(what, plan, no_plan, quiet)
    boosts = chosen.choose(applied.boosts, only or (), skip or ())
    variables: dict[str, str] = {}
    with harmless("the plan was not compared with this machine"):
        variables = _look_around(applied, boosts, what)
    stderr = last_words.StderrFile()
    ended = foreground.run(what, chosen.orders(boosts), variables, warn, as_json)
    answer = None
    with harmless("the crash is not explained"):
        answer = _explain(ended, stderr.tail(), python)
        if answer is not None and not quiet:
            explained.crash(answer, languages.chosen(None))
    with harmless("this run has no summary"):
        end = summary.run_end(ended.records, [boost.id for boost in boosts], ended.followed)
        _tell(end, applied, ended, quiet)
        if as_json:
            typer.echo(
                json.dumps(document.run_document(end, what.display, ended.shell_code, answer))
            )
    return foreground.leave(ended.returncode)


def _plan(what: Command, asked: Path | None, no_plan: bool, quiet: bool) -> Plan:
    if not no_plan and (asked or PLAN.exists()):
        from flatout.tuning import plan_file

        return plan_file.read(asked or PLAN)
    if not no_plan and not quiet:
        make = f"flatout tune {what.shown}"
        warn(f"no {PLAN} here, so the program runs as written; to make one: {make}")
    return Plan(boosts=())


def _look_around(plan: Plan, boosts: Sequence[PlannedBoost], what: Command) -> dict[str, str]:
    """Warn where this is not what the plan was measured on; the variables that its boosts need."""
    if not plan.boosts:
        return {}
    from flatout.probing.identity import identity
    from flatout.tuning import plan_file

    here = identity()
    if found := plan_file.differences(plan, here, script_sha256(what.script)):
        warn(f"not what the plan was measured on: {'; '.join(found)}")
    return chosen.environment(boosts, plan.job, here)


def _tell(end: RunEnd, plan: Plan, ended: foreground.Finished, quiet: bool) -> None:
    then = plan.machine.torch if plan.machine else None
    if then is not None and (others := ended.torch_versions - {then}):
        warn(f"torch {', '.join(sorted(others))} instead of the plan's {then}")
    if end.steps and not quiet:
        terminal.run_summary(end)
        return
    for line in (*(() if quiet else end.notes), *end.faults):
        warn(line)


def _explain(ended: foreground.Finished, stderr: bytes, python: str | None) -> Explained | None:
    texts = last_words.collected(ended.records, ended.returncode, stderr)
    if not texts:
        return None
    from flatout.diagnosing.signatures import explaining

    return explaining.of_crash(texts, lambda: look_here(python))
