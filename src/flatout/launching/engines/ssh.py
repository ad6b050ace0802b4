"""Own machines, reached by ssh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flatout.launching import contract
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

ENGINE = LaunchEngine(
    title="ssh",
    since="0.2.0",
    needs="ssh",
    travels=True,
    understands=("hosts",),
    settings=(),
)


def check(request: LaunchRequest) -> CheckedLaunch:
    raise NotImplementedError


def files(request: LaunchRequest) -> tuple[LaunchFile, ...]:
    raise NotImplementedError


def submit(request: LaunchRequest, folder: Path) -> SubmittedJob:
    raise NotImplementedError


def state(job: SubmittedJob) -> JobState:
    raise NotImplementedError


def logs(job: SubmittedJob) -> Iterator[LogLine | None]:
    raise NotImplementedError


def cancel(job: SubmittedJob) -> None:
    raise NotImplementedError


def costs(request: LaunchRequest) -> LaunchCosts:
    return contract.costs(request)
