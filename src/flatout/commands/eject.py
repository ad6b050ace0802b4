"""flatout eject."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.plan import Plan

PLACES = {
    "environment": "At the very top, before `import torch`",
    "start": "At the top, after `import torch`",
    "loader": "Where the DataLoader is made and iterated",
    "model": "Where the model is made and called",
    "optimizer": "Where the optimizer is made and steps",
}
"""Where the lines go, in the order of a script."""


def command(
    plan: Annotated[Path, typer.Option(help="The plan to print.")] = Path("flatout.toml"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Print the plan as plain PyTorch lines to paste into the script.

    flatout eject
    flatout eject --plan other.toml --json
    """
    from flatout.tuning import plan_file

    found = plan_file.read(plan)
    if not found.boosts:
        raise UserError(f"{plan} holds no boost", "make a plan: flatout tune, then your script", 1)
    entries = _entries(found)
    if as_json:
        document = {"schema": "flatout.eject/1", "plan": str(plan), "boosts": entries}
        typer.echo(json.dumps(document, indent=2))
    else:
        typer.echo(_text(found, plan, entries))
    return 0


def _entries(plan: Plan) -> list[dict[str, Any]]:
    """The boosts with their lines, in the order in which they go into a script."""
    from flatout.knowledge import boosts, jobs

    facts = jobs.facts(plan.job) if plan.job else jobs.unseen(plan.machine)
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
    places = list(PLACES)
    return sorted(entries, key=lambda entry: places.index(str(entry["where"])))


def _text(plan: Plan, path: Path, entries: list[dict[str, Any]]) -> str:
    together = f", {units.ratio(plan.speedup)} together" if plan.speedup else ""
    lines = [f"# {path} as plain PyTorch: {units.count(len(entries), 'boost')}{together}"]
    place = None
    for entry in entries:
        if entry["where"] != place:
            place = entry["where"]
            lines += ["", "", f"# ---- {PLACES[place]}"]
        gain = f" ({units.ratio(entry['gain'])} when it was added)" if entry["gain"] else ""
        lines += ["", f"# {entry['id']}: {entry['title']}{gain}", *entry["lines"]]
    if not plan.job:
        lines += ["", "# The plan does not tell for which program it was made: check the device."]
    return "\n".join(lines)
