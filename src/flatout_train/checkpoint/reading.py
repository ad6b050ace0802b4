"""Find the newest good checkpoint, and read the states in it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flatout_train.checkpoint.files import BrokenError, Entry, Folder, read_manifest, verify
from flatout_train.checkpoint.ranks import Ranks
from flatout_train.checkpoint.tracked import fit
from flatout_train.errors import CheckpointError

RANDOM_STATES = "random-states"
"""File name of the random states; no tracked thing can have it."""


class Found(NamedTuple):
    """The newest good checkpoint, and the newer ones that are broken."""

    entry: Entry
    manifest: dict[str, Any]
    broken: list[Path]


def newest(folder: Folder, ranks: Ranks) -> Found | None:
    """The newest checkpoint whose files are all as they were written; None: there is none.

    Every rank calls it and checks its part of the files. Broken ones are passed over with a
    warning that names them; where all are broken, `CheckpointError`.
    """
    listed = ranks.from_first(lambda: entries(folder))
    broken: list[Path] = []
    for entry in listed:
        manifest, problem = _look(entry, ranks)
        problems = [each for each in ranks.gather(problem) if each is not None]
        for each in problems:
            if isinstance(each, CheckpointError):
                raise each
        if not problems:
            return Found(entry, manifest, broken)
        broken.append(entry.path)
        if ranks.rank == 0:
            message = f"the checkpoint {entry.path} is broken and passed over: {problems[0]}"
            warnings.warn(message, stacklevel=4)
    if broken:
        raise CheckpointError(
            f"none of the {len(broken)} checkpoints in {folder.path} can be read "
            f"(newest: {problems[0]}): move them away to start anew, or give another folder"
        )
    return None


def read_all(found: Found, rank: int, current: dict[str, Any]) -> dict[str, Any]:
    """The saved states of the things whose states `current` holds, with keys named as there."""
    held = found.manifest["tracked"]
    if missing := [name for name in current if name not in held]:
        raise CheckpointError(
            f"{found.entry.path} holds no {missing[0]} (it holds {', '.join(held)}): resume "
            "with a Checkpoint that does not track it, and save with one that does"
        )
    if left := [name for name in held if name not in current]:
        message = f"{left[0]} in {found.entry.path} is not tracked here, and not loaded"
        warnings.warn(message, stacklevel=7)
    return {name: fit(read(found, name, rank), state) for name, state in current.items()}


def read(found: Found, name: str, rank: int) -> Any:
    """The state in the file of this rank, or, where it has none, in that of rank 0."""
    path = found.entry.path / (own_file(found, name, rank) or f"{name}.pt")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error


def own_file(found: Found, name: str, rank: int) -> str | None:
    """The file that this very rank wrote; None: it wrote none."""
    file = f"{file_name(name, rank)}.pt"
    return file if file in found.manifest["files"] else None


def file_name(name: str, rank: int) -> str:
    """Name, without suffix, of the file in which a rank keeps this state."""
    return f"{name}.rank{rank}" if rank else name


def entries(folder: Folder) -> list[Entry]:
    try:
        return folder.entries()
    except OSError as error:
        raise CheckpointError(
            f"{folder.path} cannot be read ({error.strerror}): give a folder that this user may "
            "read and write"
        ) from error


def _look(
    entry: Entry, ranks: Ranks
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
        cure = "give this user the right to read it"
        path = error.filename or entry.path
        return {}, CheckpointError(f"{path} cannot be read ({error.strerror}): {cure}")
