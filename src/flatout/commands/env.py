"""flatout env."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.nouns.errors import UserError

if TYPE_CHECKING:
    from flatout.installing.target import Target

Document = dict[str, Any]
WHAT = ("install", "docker", "conda", "freeze", "tensorflow")
LIMIT_S = 10.0
"""For looking at the machine: who installs would rather wait than have the wrong build."""


def command(
    what: Annotated[
        str, typer.Argument(help="install, docker, conda, freeze or tensorflow.")
    ] = "install",
    for_: Annotated[
        str | None, typer.Option("--for", help="Another machine: gpu=rtx4090,driver=535,os=windows")
    ] = None,
    python: Annotated[str | None, typer.Option(help="The interpreter to install into.")] = None,
    manager: Annotated[str | None, typer.Option(help="pip, uv or conda.")] = None,
    mirror: Annotated[str | None, typer.Option(help="Address of a mirror of the wheels.")] = None,
    shell: Annotated[str | None, typer.Option(help="bash or powershell.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Show the lines, then run them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --apply.")] = False,
    write: Annotated[Path | None, typer.Option(help="Write the files into this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Print what installs the right PyTorch here or elsewhere, and why it is the right one.

    flatout env install
    flatout env install --for gpu=rtx4090,driver=535,os=windows,python=3.11
    flatout env docker --write .
    flatout env conda
    flatout env freeze
    flatout env tensorflow
    """
    if what not in WHAT:
        raise UserError(f"there is no 'flatout env {what}'", f"one of {', '.join(WHAT)}")
    if apply and (for_ is not None or what not in ("install", "tensorflow")):
        raise UserError("--apply is for flatout env install and tensorflow on this machine")
    target = None if what == "freeze" else _target(for_, python, manager, shell)
    document = _answer(what, target, python, mirror)
    _show(document, write, force, as_json)
    if apply and target is not None:
        _apply(target, document["commands"], yes)
    return 0


def _answer(what: str, target: Target | None, python: str | None, mirror: str | None) -> Document:
    from flatout.installing import answers

    answer = {"schema": "flatout.env/1", "what": what}
    if target is not None:
        return {**answer, **answers.answer(what, target, mirror).document()}
    from flatout.probing import packages

    return {**answer, **answers.frozen(packages.look(_interpreter(python)))}


def _show(document: Document, write: Path | None, force: bool, as_json: bool) -> None:
    from flatout.installing import answers
    from flatout.installing import apply as doing

    if write is not None:
        for path in doing.write(document["files"], write, force):
            typer.echo(f"wrote {path}", err=True)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    elif write is None:
        typer.echo(answers.shown(document["files"]), nl=False)


def _target(for_: str | None, python: str | None, manager: str | None, shell: str | None) -> Target:
    from flatout.installing import description
    from flatout.installing import target as targets

    if for_ is not None:
        return targets.adjusted(description.read(for_), manager, shell)
    from flatout.probing import machine

    here = machine.look(_interpreter(python), limit_s=LIMIT_S)
    return targets.adjusted(targets.asked(here), manager, shell)


def _interpreter(python: str | None) -> str:
    from flatout.running import command as running

    return running.chosen_python(python)


def _apply(target: Target, commands: list[str], yes: bool) -> None:
    from flatout.installing import apply as doing

    if not yes:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UserError("--apply asks first, and there is no terminal to ask", "add --yes")
        if not typer.confirm("Run these lines?", err=True):
            raise UserError("nothing was run", exit_code=1)
    doing.run(target, commands, lambda line: typer.echo(line, err=True))
