"""The command that runs on each node, the same for all engines."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from typing import Any

import flatout
from flatout.nouns import units
from flatout.nouns.launched import LaunchCosts, LaunchRequest
from flatout_agent import wire

SAVED_EXIT = wire.SAVED_EXIT
"""Exit code of `flatout run`: the program was warned, saved its state and can resume from it."""
LOST_EXIT = wire.LOST_EXIT
"""Exit code of `flatout run`: another node, or its ranks, were lost. The engine knows what
happened to that node."""
TERMINATED_EXIT = 143
"""128 + SIGTERM: the node was taken away, and the program saved nothing."""


def own_requirement() -> str:
    """What pip installs the same flatout from: the repository's commit if it came from there."""
    origin = _origin()
    try:
        vcs = origin["vcs_info"]
        return f"flatout @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
    except KeyError:
        return f"flatout=={flatout.__version__}"


def only_here() -> str | None:
    """The file or folder of this machine that flatout was installed from; None: others have it."""
    origin = _origin()
    url = str(origin.get("url", ""))
    return url if url.startswith("file:") and "vcs_info" not in origin else None


def _origin() -> dict[str, Any]:
    """What pip wrote down of where flatout came from; empty if from an index."""
    try:
        text = metadata.distribution("flatout").read_text("direct_url.json")
        origin = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


INSTALL = f"python -m pip install --quiet {shlex.quote(own_requirement())}"
"""Installs flatout on a node that may lack it."""


def node_command(
    request: LaunchRequest, program: tuple[str, ...] = ("flatout",), wait: str = ""
) -> list[str]:
    """`flatout run ... --nodes auto train.py` as separate words.

    program: what starts it on the node. wait: how long to wait for other nodes; "" is the default.
    """
    words = [*program, "run", "--nodes", "auto", *(("--nodes-wait", wait) if wait else ())]
    if request.gpus is not None:
        words += ["--gpus", "all" if request.gpus == "all" else str(request.gpus)]
    elif request.ranks is not None:
        words += ["--ranks", str(request.ranks)]
    if request.restarts:
        words += ["--restarts", str(request.restarts)]
    if request.python:
        words += ["--python", request.python]
    if request.plan is not None:
        words += ["--plan", request.plan.as_posix()]
    return [*words, *request.argv]


def node_line(
    request: LaunchRequest, program: tuple[str, ...] = ("flatout",), wait: str = ""
) -> str:
    """The same as a line of a shell script."""
    return shlex.join(node_command(request, program, wait))


def costs(request: LaunchRequest, notes: tuple[str, ...] = ()) -> LaunchCosts:
    """The resources requested, for an engine that knows no prices."""
    gpus = None if request.gpus == "all" else request.nodes * (request.gpus or 0)
    hours = None if request.time_s is None else request.time_s / 3600
    return LaunchCosts(request.nodes, gpus, hours, notes=notes)


def waits(fit: int, asked: str, nodes: int) -> str:
    """A warning that too few nodes have what is requested; more may still be added."""
    have = "has" if fit == 1 else "have"
    return (
        f"{units.count(fit, 'node')} of the cluster now {have} {asked}: "
        f"it waits until there are {nodes}"
    )
