"""What `flatout launch` says: the request, the job's states and lines, what failed first."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from flatout.nouns import units
from flatout.nouns.launched import (
    FirstFailure,
    JobState,
    LaunchCosts,
    LogLine,
    PreparedLaunch,
    SubmittedJob,
)
from flatout.reporting import plain, terminal

if TYPE_CHECKING:
    from rich.console import Console

LAUNCH = "flatout.launch/1"
STATES = {
    "queued": "waits",
    "running": "runs",
    "ended": "has ended",
    "failed": "has failed",
    "cancelled": "was cancelled",
    "unknown": "is not known to the engine now",
}


def asked(prepared: PreparedLaunch, title: str, console: Console | None = None) -> None:
    """What would be submitted, and what it may cost."""
    request = prepared.request
    terminal.say(f"{title}: {request.shown} on {costs_line(prepared.costs)}", console)
    if request.packed is not None:
        count = units.count(len(request.packed.files), "file")
        terminal.say(f"sent along: {count}, {units.size(request.packed.size_bytes)}", console)
    for note in prepared.notes:
        terminal.say(note, console)
    for warning in prepared.warnings:
        terminal.warn(warning, console)


def costs_line(costs: LaunchCosts) -> str:
    """For example "2 nodes, 16 GPUs, at most 4 h 00 min: 64 GPU hours"."""
    parts = [units.count(costs.nodes, "node")]
    if costs.gpus is None:
        parts.append("all their GPUs")
    elif costs.gpus:
        parts.append(f"{units.count(costs.gpus, 'GPU')} {costs.gpu_model}".strip())
    else:
        parts.append("no GPU")
    line = ", ".join(parts)
    if costs.hours is None:
        return f"{line}, no time limit named (--time)"
    line += f", at most {units.duration(costs.hours * 3600)}"
    if costs.gpu_hours:
        line += f": {costs.gpu_hours:,.4g} GPU hours"
    if costs.price_per_hour is not None:
        line += f", at most ${costs.price_per_hour * costs.hours:,.2f}"
    return line


def files(prepared: PreparedLaunch) -> None:
    """Print every file as it would be written."""
    for file in prepared.files:
        if len(prepared.files) > 1:
            sys.stdout.write(f"# ---- {file.path}\n")
        sys.stdout.write(file.text if file.text.endswith("\n") else f"{file.text}\n")


def submitted(job: SubmittedJob, title: str) -> None:
    """The engine has accepted the job; where its files are."""
    terminal.say(f"{title} has accepted it as job {job.id} ({job.name})")
    terminal.say(f"files: {_below_here(job.folder)}")


def line(entry: LogLine, stream: IO[str] | None = None) -> None:
    """A line of the job, after the node or rank that wrote it."""
    out = stream or sys.stdout
    # A progress bar redraws its line: only its last state matters here.
    shown = [part for part in entry.text.split("\r") if part.strip()]
    prefix = f"[{entry.source}] " if entry.source else ""
    for text in plain.lines(shown[-1] if shown else "") or [""]:
        out.write(f"{prefix}{text}\n")
    out.flush()


def state(job: SubmittedJob, now: JobState) -> None:
    """The job waits, runs or has ended."""
    terminal.say(f"job {job.id} {state_words(now)}")


def state_words(now: JobState) -> str:
    """For example "waits: no node is free"."""
    words = STATES[now.state]
    if now.state == "running" and now.nodes:
        words += f" on {', '.join(now.nodes)}"
    if now.state == "failed" and now.returncode:
        words += f" (exit code {now.returncode})"
    return f"{words}: {now.detail}" if now.detail else words


def left(job: SubmittedJob) -> None:
    """How to come back to a job that goes on."""
    terminal.say(f"job {job.id} goes on")
    for words, command in hints(job):
        terminal.say(f"  {words}: {command}")


def hints(job: SubmittedJob) -> Iterator[tuple[str, str]]:
    """What can be done with a job that goes on."""
    yield "come back", f"flatout launch --follow {job.id}"
    if "monitor" in job.extra:
        yield "its machines", job.extra["monitor"]
    if "results" in job.extra:
        yield "what it writes", job.extra["results"]
    yield "end it", f"flatout launch --cancel {job.id}"


def failed(failure: FirstFailure | None, job: SubmittedJob, language: str) -> None:
    """Which node or rank failed first, and why if the log says so."""
    if failure is None:
        terminal.say("no line of its log says why; its files: " + _below_here(job.folder))
        return
    where = f"{failure.source}: " if failure.source else ""
    for text in failure.tail:
        sys.stderr.writelines(f"  | {shown}\n" for shown in plain.lines(text) or [""])
    terminal.error(f"{where}{failure.error}")
    if failure.explained is not None:
        from flatout.reporting import explained

        explained.crash(failure.explained, language)


def listing(rows: Iterable[tuple[SubmittedJob, JobState]]) -> None:
    """The jobs that were launched from here."""
    table = [("job", "name", "engine", "nodes", "state")]
    for job, now in rows:
        state = plain.one_line(state_words(now))
        table.append((job.id, job.name, job.engine, str(job.nodes), state))
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for row in table:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        sys.stdout.write("  ".join([*cells, row[4]]).rstrip() + "\n")


def launch_document(
    prepared: PreparedLaunch | None,
    job: SubmittedJob | None = None,
    now: JobState | None = None,
    failure: FirstFailure | None = None,
) -> dict[str, Any]:
    """What `flatout launch --json` prints."""
    document: dict[str, Any] = {"schema": LAUNCH}
    if prepared is not None:
        request, costs = prepared.request, prepared.costs
        document |= {
            "engine": request.engine,
            "command": list(request.argv),
            "nodes": costs.nodes,
            "gpus": costs.gpus,
            "hours": costs.hours,
            "gpu_hours": costs.gpu_hours,
            "files": {file.path: file.text for file in prepared.files},
            "warnings": list(prepared.warnings),
            "notes": list(prepared.notes),
        }
    first: dict[str, Any] | None = None
    if failure is not None:
        answer = failure.explained
        signature = answer.matches[0].id if answer is not None and answer.matches else None
        first = {"source": failure.source, "error": failure.error, "signature": signature}
        first["log"] = list(failure.tail)
    return document | {
        "job": dataclasses.asdict(job) if job is not None else None,
        "state": now.state if now is not None else None,
        "detail": now.detail if now is not None else "",
        "returncode": now.returncode if now is not None else None,
        "failure": first,
    }


def _below_here(folder: str) -> str:
    path = Path(folder)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
