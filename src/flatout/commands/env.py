"""flatout env."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.commands import _options, print_document, warn

if TYPE_CHECKING:
    from flatout.installing.target import Target

PLACE = ("Fix", 3)
Document = dict[str, Any]
LIMIT_S = 10.0
"""Seconds to look at the machine: users prefer to wait rather than get a wrong build."""

For = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="MACHINE",
        help="Another machine, such as gpu=a100,driver=550.  [default: this one]",
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PYTHON",
        help="Python interpreter to install into.  [default: the active one]",
    ),
]
PythonToFit = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PYTHON",
        help="Python interpreter whose version is used.  [default: the active one]",
    ),
]
Manager = Annotated[
    str | None,
    typer.Option(
        metavar="[pip|uv|conda]",
        help="Package manager to install with.  [default: the environment's]",
    ),
]
Mirror = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Download packages from this mirror."),
]
Remove = Annotated[bool, typer.Option("--remove", help="Delete the file again.")]


def modern(words: Sequence[str]) -> list[str]:
    """Alone, it prints what fits this machine, as the README says."""
    return [*words] or ["install"]


def command() -> None:
    """Print the install commands or the Dockerfile that fit this machine.

    Versions are chosen for the GPU, the driver and the Python of this machine or of one that you
    describe, and the reasons are printed. Nothing is installed: paste the lines that you want. The
    command hook is about FLATOUT_LIVE=1 instead, and writes one file.

    Examples:
      flatout env
      flatout env install --for gpu=rtx4090,driver=535,os=windows,python=3.11
      flatout env docker > Dockerfile
    """


def install(
    for_: For = None,
    python: Python = None,
    manager: Manager = None,
    mirror: Mirror = None,
    as_json: _options.Json = False,
) -> int:
    """Print the commands that install a matching driver and PyTorch.

    --for takes the keys gpu, gpus, capability, driver, rocm, os, arch, python, manager and libc.

    Examples:
      flatout env install
      flatout env install --for gpu=rtx4090,driver=535,os=windows,python=3.11
    """
    return _answered("install", _target(for_, python, manager), mirror, as_json)


def docker(
    for_: For = None,
    python: PythonToFit = None,
    mirror: Mirror = None,
    as_json: _options.Json = False,
) -> int:
    """Print a Dockerfile with a matching PyTorch.

    Examples:
      flatout env docker > Dockerfile
    """
    return _answered("docker", _target(for_, python), mirror, as_json)


def hook(remove: Remove = False, as_json: _options.Json = False) -> int:
    """Let FLATOUT_LIVE=1 tune what trains in this environment.

    Writes one file among the packages of the environment that flatout is installed in. Where the
    variable FLATOUT_LIVE is 1, each program that trains in it is then tuned while it trains, also
    one that a platform or an editor starts. Where it is not set, nothing changes.

    Examples:
      python -m flatout env hook
      FLATOUT_LIVE=1 python train.py
      python -m flatout env hook --remove
    """
    import importlib.util
    import sysconfig

    from flatout.installing import hook as file

    packages = Path(sysconfig.get_path("purelib"))
    path = file.remove(packages) if remove else file.install(packages)
    if as_json:
        document = {"installed": not remove, "file": str(path) if path is not None else None}
        print_document({**_head("hook"), **document})
    elif path is None:
        typer.echo(f"{packages} has no such file: nothing was deleted", err=True)
    elif remove:
        typer.echo(f"deleted {path}: FLATOUT_LIVE has no effect any more", err=True)
    else:
        typer.echo(
            f"wrote {path}: with FLATOUT_LIVE=1, programs that train here are tuned", err=True
        )
    if not remove and importlib.util.find_spec("torch") is None:
        warn(f"torch is not installed beside flatout in {sys.prefix}: nothing can train there")
    return 0


SUBCOMMANDS = (install, docker, hook)


def _head(kind: str) -> Document:
    return {"schema": "flatout.env/1", "what": kind}


def _answered(kind: str, target: Target, mirror: str | None, as_json: bool) -> int:
    """Show the answer."""
    from flatout.installing import answers

    answer = answers.answer(kind, target, mirror)
    if as_json:
        print_document({**_head(kind), **answer.document()})
    else:
        typer.echo(answer.text, nl=False)
    return 0


def _target(for_: str | None, python: str | None, manager: str | None = None) -> Target:
    from flatout.installing import description
    from flatout.installing import target as targets

    if for_ is not None:
        return targets.adjusted(description.read(for_), manager)
    from flatout.probing import machine
    from flatout.running.one.command import chosen_python

    facts = machine.look(chosen_python(python), limit_s=LIMIT_S)
    return targets.adjusted(targets.of_interpreter(facts), manager)
