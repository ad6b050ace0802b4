"""The engines of `flatout launch`, one per file: the folder is the table, the file's name the id.

A file's docstring is the engine's page: its first line says what the engine is, then come the
headings The command, What is written, What is checked first, Following and stopping, Restarts,
What was really run, References. Each file defines

- `ENGINE = LaunchEngine(...)`.
- `check(request) -> CheckedLaunch`: raises UserError for everything that can be known before
  submission (not installed, not logged in, no such partition, image missing ...). Fills in what
  only the engine knows, such as how many GPUs `all` are.
- `files(request) -> tuple[LaunchFile, ...]`: what the engine reads. Pure: the same request gives
  the same text. On each node they run `contract.node_command(request)`.
- `submit(request, folder) -> SubmittedJob`: the files are in `folder`. Raises UserError.
- `state(job) -> JobState`: asks the engine; `unknown` if it does not answer. Never raises.
- `logs(job) -> Iterator[LogLine | None]`: lines from the beginning, or None if there is nothing
  new. The caller decides how long to wait and when to stop. Never raises.
- `cancel(job) -> None`: ends the job on all nodes. Raises UserError.
- `costs(request) -> LaunchCosts`: the resources requested.

It may define `read(job, node, path) -> str`: the end of a file on that node, or empty if it cannot
be read. Never raises.

Engines do not import each other; shared code is in `launching` itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from flatout.nouns.launched import (
    CheckedLaunch,
    JobState,
    LaunchCosts,
    LaunchEngine,
    LaunchFile,
    LaunchRequest,
    LogLine,
    SubmittedJob,
)


class Engine(Protocol):
    """The module of an engine."""

    ENGINE: LaunchEngine

    def check(self, request: LaunchRequest) -> CheckedLaunch: ...
    def files(self, request: LaunchRequest) -> tuple[LaunchFile, ...]: ...
    def submit(self, request: LaunchRequest, folder: Path) -> SubmittedJob: ...
    def state(self, job: SubmittedJob) -> JobState: ...
    def logs(self, job: SubmittedJob) -> Iterator[LogLine | None]: ...
    def cancel(self, job: SubmittedJob) -> None: ...
    def costs(self, request: LaunchRequest) -> LaunchCosts: ...


def names() -> list[str]:
    """The ids of all engines."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if not name.startswith("_"))


def load(name: str) -> Engine:
    """The engine of that id. Raises KeyError for an unknown one."""
    if name not in names():
        raise KeyError(name)
    return cast("Engine", importlib.import_module(f"{__name__}.{name}"))


def title(name: str) -> str:
    """What the engine is, in one line without the full stop."""
    return (load(name).__doc__ or "").strip().partition("\n")[0].removesuffix(".")


def page(name: str) -> str:
    """The engine's whole page, Markdown: its facts, then its documentation."""
    module = load(name)
    about = module.ENGINE
    facts = [
        f"- Needs {about.needs}",
        f"- The code folder {'is sent along' if about.travels else 'is not sent'}",
        f"- Since {about.since}",
    ]
    body = (module.__doc__ or "").strip().partition("\n")[2].strip()
    head = [f"# flatout launch {name}", f"{title(name)}."]
    return "\n\n".join([*head, "\n".join(facts), body]) + "\n"
