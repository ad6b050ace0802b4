"""flatout eject."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.commands import _options
from flatout.nouns.errors import UserError
from flatout.nouns.plan import Plan

PLACE = ("Speed up", 3)
PlanToPrint = Annotated[Path, typer.Option("--plan", metavar="FILE", help="Print this plan.")]


def command(
    plan: PlanToPrint = Path("flatout.toml"),
    as_json: _options.Json = False,
) -> int:
    """Print the plan as PyTorch code to paste into the script.

    The code is plain PyTorch and does not need flatout.

    Examples:
      flatout eject
      flatout eject --plan other.toml
    """
    from flatout.reporting import lines
    from flatout.tuning import plan_file

    contents = plan_file.read(plan)
    if not contents.boosts:
        raise UserError(f"{plan} holds no boost", "make a plan: flatout tune, then your script", 1)
    document = {
        "schema": "flatout.eject/1",
        "plan": str(plan),
        "speedup": contents.speedup,
        "job_known": contents.job is not None,
        "boosts": sorted(
            _entries(contents), key=lambda entry: list(lines.PLACES).index(entry["where"])
        ),
    }
    typer.echo(json.dumps(document, indent=2) if as_json else lines.source(document))
    return 0


def _entries(plan: Plan) -> list[dict[str, Any]]:
    """The boosts with their lines, fitted to the job that the plan was made for."""
    from flatout.knowledge import boosts, jobs

    facts = plan.job or jobs.unseen(plan.machine)
    entries = []
    for planned in plan.boosts:
        boost = boosts.get(planned.id)
        before_torch = bool(boost.environment(facts, planned.params))
        entries.append(
            {
                "id": boost.id,
                "title": boost.title,
                "risk": boost.risk.value,
                "gain": planned.gain,
                "params": planned.params,
                "where": "environment" if before_torch else boost.moment.value,
                "lines": boost.by_hand(facts, planned.params).strip("\n").splitlines(),
            }
        )
    return entries
