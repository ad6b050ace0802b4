"""Finding the newest intact checkpoint, and reading its states."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from flatout_train.checkpoint import sharded as checkpoint_sharded
from flatout_train.checkpoint.files import RANDOM_STATES, Folder, SavedCheckpoint
from flatout_train.checkpoint.ranks import CheckpointRanks
from flatout_train.errors import CheckpointError


def newest(folder: Folder, ranks: CheckpointRanks) -> SavedCheckpoint | None:
    """The newest checkpoint whose files are all intact, or None if there is no checkpoint.

    Every rank calls it and checks its share of the files. Broken checkpoints are skipped with a
    warning that names them; CheckpointError is raised if all are broken.
    """
    listed = ranks.from_first(lambda: entries(folder))
    problems: list[str] = []
    for entry in listed:
        own = ranks.together(lambda path=entry.path: _problem(path, ranks))  # type: ignore[misc]
        problems = [problem for problem in own if problem is not None]
        if not problems:
            return entry
        if ranks.rank == 0:
            message = f"the checkpoint {entry.path} is broken and was skipped: {problems[0]}"
            warnings.warn(message, stacklevel=3)
    if problems:
        raise CheckpointError(
            f"none of the {len(listed)} checkpoints in {folder.path} can be read "
            f"(oldest: {problems[0]}): move them away to start afresh, or pass another folder"
        )
    return None


def read_all(path: Path, rank: int, names: list[str]) -> dict[str, Any]:
    """The saved states of the objects of these names."""
    held = sorted({file.name.partition(".")[0] for file in path.glob("*.pt")} - {RANDOM_STATES})
    if missing := [name for name in names if name not in held]:
        raise CheckpointError(
            f"{path} holds no {missing[0]} (it holds {', '.join(held)}): resume with a Checkpoint "
            "that does not track it, and save with one that does"
        )
    if left := [name for name in held if name not in names]:
        message = f"{left[0]} in {path} is not tracked and was not loaded"
        warnings.warn(message, stacklevel=6)
    return {name: read(path, name, rank) for name in names}


def read(path: Path, name: str, rank: int) -> Any:
    """The state in this rank's file or, where there is none, in that of rank 0."""
    file = own_file(path, name, rank) or path / f"{name}.pt"
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{file} cannot be loaded: {error}") from error


def own_file(path: Path, name: str, rank: int) -> Path | None:
    """The file that this rank wrote, or None if it wrote none."""
    file = path / f"{file_name(name, rank)}.pt"
    return file if file.exists() else None


def file_name(name: str, rank: int) -> str:
    """Name, without suffix, of the file in which a rank keeps this state."""
    return f"{name}.rank{rank}" if rank else name


def entries(folder: Folder) -> list[SavedCheckpoint]:
    try:
        return folder.entries()
    except OSError as error:
        raise CheckpointError(
            f"{folder.path} cannot be read ({error.strerror}): pass a folder that this user may "
            "read and write"
        ) from error


def _problem(path: Path, ranks: CheckpointRanks) -> str | None:
    """What is wrong with this rank's share of the files, or None."""
    files = sorted(path.glob("*.pt"))
    if path / f"{RANDOM_STATES}.pt" not in files:
        return f"it has no {RANDOM_STATES}.pt"
    for file in files[ranks.rank :: ranks.size]:
        try:
            with zipfile.ZipFile(file) as archive:  # which has a checksum of its whole content
                damaged = archive.testzip()
        except PermissionError as error:
            raise CheckpointError(
                f"{file} cannot be read ({error.strerror}): give this user permission to read it"
            ) from error
        except Exception as error:
            return f"{file.name} cannot be read ({error})"
        if damaged is not None:
            return f"{file.name} is damaged at {damaged}"
    return checkpoint_sharded.problem(path, ranks.rank, ranks.size)
