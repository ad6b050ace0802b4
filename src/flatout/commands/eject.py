"""flatout eject."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated

import typer

from flatout.commands import _options, print_document
from flatout.nouns.ejected import Ejected, EjectedBoost
from flatout.nouns.errors import UserError
from flatout.nouns.plan import Plan

PLACE = ("Speed up", 3)
PlanToPrint = Annotated[Path, typer.Option("--plan", metavar="FILE", help="Print this plan.")]
NoRun = Annotated[
    bool, typer.Option("--no-run", help="Do not run the changed script for a few steps.")
]


def command(
    plan: PlanToPrint = Path("flatout.toml"),
    no_run: NoRun = False,
    as_json: _options.Json = False,
) -> int:
    """Print the plan as plain PyTorch: a diff of the script.

    The changed script is run for a few steps; what it saves is discarded, and the script itself
    is not touched. What cannot be told from the script is printed as a template. Neither needs
    flatout.

    Examples:
      flatout eject
      flatout eject | patch train.py
      flatout eject --plan other.toml
    """
    from flatout.reporting import document, lines, terminal
    from flatout.tuning import ejecting, plan_file, script_syntax

    contents = plan_file.read(plan, terminal.warn)
    if not contents.boosts:
        raise UserError(f"{plan} holds no boost", "make one: flatout tune train.py", 1)
    places = list(lines.PLACES)
    boosts = tuple(sorted(_boosts(contents), key=lambda boost: places.index(boost.where)))
    hand = ast.parse("\n".join(line for boost in boosts for line in boost.lines))
    ejected = Ejected(
        str(plan),
        contents.speedup,
        job_known=contents.job is not None,
        boosts=boosts,
        yours=tuple(script_syntax.free(hand)),
    )
    ejected = ejecting.as_changes(ejected, contents, None if no_run else terminal.say)
    if as_json:
        print_document(document.eject_document(ejected))
    else:
        typer.echo(lines.source(ejected))
    return 0


def _boosts(plan: Plan) -> list[EjectedBoost]:
    """The boosts with their lines, for the job that the plan was made for."""
    from flatout.knowledge import boosts, jobs

    facts = plan.job or jobs.unseen(plan.machine)
    ejected = []
    for planned in plan.boosts:
        boost = boosts.get(planned.id)
        before_torch = bool(boost.environment(facts, planned.params))
        text = boost.by_hand(facts, planned.params).strip("\n")
        ejected.append(
            EjectedBoost(
                boost.id,
                boost.title,
                risk=boost.risk.value,
                gain=planned.gain,
                params=planned.params,
                where="environment" if before_torch else boost.moment.value,
                lines=tuple(text.splitlines()),
            )
        )
    return ejected
