"""flatout explain."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from flatout.nouns.errors import UserError


def command(
    code: Annotated[str, typer.Argument(help="A finding's code or name: ENV002.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Print what a finding's code means, why it matters, and its cure.

    flatout explain ENV002
    """
    from flatout.diagnosing import pages

    page = pages.find(code)
    if page is None:
        near = pages.nearest(code)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"there is no finding {code!r}{hint}", "flatout doctor lists findings", 1)
    if as_json:
        document = {"schema": "flatout.explain/1", "matches": [], "page": dataclasses.asdict(page)}
        typer.echo(json.dumps(document, indent=2))
        return 0
    from flatout.reporting import terminal

    terminal.page(page.markdown)
    return 0
