"""Where launches keep their files: `.flatout/launch/<name>-<time>/` in the code folder."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from flatout.nouns.decoding import decode
from flatout.nouns.errors import UserError
from flatout.nouns.launched import JOB_FILE, LaunchFile, SubmittedJob

ROOT = Path(".flatout", "launch")


def planned(name: str, under: Path) -> Path:
    """The full path of a folder for one launch, which does not exist yet."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    root = (under / ROOT).absolute()
    for number in count(1):
        folder = root / (f"{name}-{stamp}" if number == 1 else f"{name}-{stamp}-{number}")
        if not folder.exists():
            return folder
    raise AssertionError("count() has no end")


def make(folder: Path) -> None:
    """Make it, closed to other users. Raises OSError; FileExistsError if another launch has it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    ignore = folder.parent.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    folder.mkdir(mode=0o700)


def write(files: Iterable[LaunchFile], folder: Path) -> None:
    """Write the files, readable only by their owner because variables may hold tokens."""
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o700 if file.executable else 0o600)
        path.write_text(file.text, encoding="utf-8", newline="\n")


def keep(job: SubmittedJob) -> None:
    """Write the job into its folder, so that it can be found again."""
    text = json.dumps(dataclasses.asdict(job), indent=2) + "\n"
    path = Path(job.folder, JOB_FILE)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def submitted(under: Path) -> list[SubmittedJob]:
    """All jobs that were launched from `under`, the newest first."""
    jobs = [job for path in (under / ROOT).glob(f"*/{JOB_FILE}") if (job := _read(path))]
    return sorted(jobs, key=lambda job: (job.submitted_at, job.id), reverse=True)


def find(word: str, under: Path) -> SubmittedJob:
    """The newest job of that id, name or folder; `last` is the newest of all. Raises UserError."""
    jobs = submitted(under)
    named = Path(word)
    if (named / JOB_FILE).is_file() and (job := _read(named / JOB_FILE)):
        return job
    for job in jobs:
        if word in (job.id, job.name, Path(job.folder).name, "last"):
            return job
    known = ", ".join(dict.fromkeys(f"{job.name} ({job.id})" for job in jobs[:5]))
    message = f"no job {word!r} was launched from {under}"
    raise UserError(
        f"{message}; there are {known}" if known else message,
        "flatout launch --list, in the folder that it was launched from",
    )


def _read(path: Path) -> SubmittedJob | None:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    job = decode(SubmittedJob, raw)
    # The folder may have been moved since, or be reached by another path.
    return None if job is None else dataclasses.replace(job, folder=str(path.parent.absolute()))


def default_name(argv: Iterable[str]) -> str:
    """The job's name: `train` for train.py; lower-case letters, digits and hyphens."""
    words = [word for word in argv if not word.startswith("-")]
    scripts = [word for word in words if word.endswith(".py")]
    first = (scripts or words or ["job"])[0]
    name = re.sub(r"[^a-z0-9]+", "-", Path(first).name.removesuffix(".py").lower()).strip("-")
    return name[:40].strip("-") or "job"
