"""Finding the newest intact checkpoint, and reading its states."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flatout_train.checkpoint.files import (
    BrokenError,
    Folder,
    SavedCheckpoint,
    read_manifest,
    verify,
)
from flatout_train.checkpoint.ranks import CheckpointRanks
from flatout_train.checkpoint.tracked import fit
from flatout_train.errors import CheckpointError

RANDOM_STATES = "random-states"
"""File name of the random states; no tracked object can have it."""


class NewestCheckpoint(NamedTuple):
    """The newest intact checkpoint, and the newer ones that are broken."""

    entry: SavedCheckpoint
    manifest: dict[str, Any]
    broken: list[Path]


def newest(folder: Folder, ranks: CheckpointRanks) -> NewestCheckpoint | None:
    """The newest checkpoint whose files are all intact; None: there is no checkpoint.

    Every rank calls it and checks its share of the files. Broken checkpoints are skipped with a
    warning that names them; CheckpointError where all are broken.
    """
    listed = ranks.from_first(lambda: entries(folder))
    broken: list[Path] = []
    for entry in listed:
        manifest, own_problem = _look(entry, ranks)
        problems = [problem for problem in ranks.gather(own_problem) if problem is not None]
        for problem in problems:
            if isinstance(problem, CheckpointError):
                raise problem
        if not problems:
            return NewestCheckpoint(entry, manifest, broken)
        broken.append(entry.path)
        if ranks.rank == 0:
            message = f"the checkpoint {entry.path} is broken and was skipped: {problems[0]}"
            warnings.warn(message, stacklevel=4)
    if broken:
        raise CheckpointError(
            f"none of the {len(broken)} checkpoints in {folder.path} can be read "
            f"(newest: {problems[0]}): move them away to start afresh, or pass another folder"
        )
    return None


def read_all(source: NewestCheckpoint, rank: int, current: dict[str, Any]) -> dict[str, Any]:
    """The saved states of the objects in `current`, with the keys of their current states."""
    held = source.manifest["tracked"]
    if missing := [name for name in current if name not in held]:
        raise CheckpointError(
            f"{source.entry.path} holds no {missing[0]} (it holds {', '.join(held)}): resume "
            "with a Checkpoint that does not track it, and save with one that does"
        )
    if left := [name for name in held if name not in current]:
        message = f"{left[0]} in {source.entry.path} is not tracked and was not loaded"
        warnings.warn(message, stacklevel=7)
    return {name: fit(read(source, name, rank), state) for name, state in current.items()}


def read(source: NewestCheckpoint, name: str, rank: int) -> Any:
    """The state in this rank's file or, where there is none, in that of rank 0."""
    path = source.entry.path / (own_file(source, name, rank) or f"{name}.pt")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error


def own_file(source: NewestCheckpoint, name: str, rank: int) -> str | None:
    """The file that this rank wrote; None: it wrote none."""
    file = f"{file_name(name, rank)}.pt"
    return file if file in source.manifest["files"] else None


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


def _look(
    entry: SavedCheckpoint, ranks: CheckpointRanks
) -> tuple[dict[str, Any], BrokenError | CheckpointError | None]:
    """The manifest, and what is wrong with this rank's part of the files."""
    try:
        manifest = read_manifest(entry.path)
        for number, (name, facts) in enumerate(sorted(manifest["files"].items())):
            if number % ranks.size == ranks.rank:
                verify(entry.path, name, facts)
        return manifest, None
    except (BrokenError, CheckpointError) as problem:
        return {}, problem
    except OSError as error:
        cure = "give this user permission to read it"
        path = error.filename or entry.path
        return {}, CheckpointError(f"{path} cannot be read ({error.strerror}): {cure}")
