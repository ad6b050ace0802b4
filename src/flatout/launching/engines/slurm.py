"""Slurm, the batch system of most clusters that are not in a cloud."""

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
    title="Slurm",
    since="0.2.0",
    needs="sbatch",
    travels=False,
    understands=("partition", "account"),
    settings=("*",),
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
