"""Writing one staged checkpoint, on all ranks together, and the thread that does it."""

from __future__ import annotations

import dataclasses
import errno
import functools
import threading
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from flatout_agent.watch import library_pulse
from flatout_train.checkpoint import sharded as checkpoint_sharded
from flatout_train.checkpoint.files import Files, Folder, SavedCheckpoint
from flatout_train.checkpoint.ranks import CheckpointRanks
from flatout_train.errors import CheckpointError

_CURES = {
    errno.ENOSPC: "free some space there, lower keep, or give Checkpoint a folder on another disk",
    errno.EDQUOT: "free some of the quota, lower keep, or give Checkpoint another folder",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f), or give another folder",
    errno.EROFS: "give Checkpoint a folder that can be written to",
    errno.EACCES: "give this user the right to write there, or give Checkpoint another folder",
    errno.EPERM: "give this user the right to write there, or give Checkpoint another folder",
    errno.ENOTDIR: "give Checkpoint a folder, not a file",
    errno.EEXIST: "give Checkpoint a folder, not a file",
}


@dataclasses.dataclass(frozen=True)
class Staged:
    """The state after a step, in host memory."""

    step: int
    states: dict[str, Any]
    """File name without the suffix -> nest; what this rank writes."""
    shards: dict[str, Any]
    """Place in a state -> DTensor on the host."""
    facts: dict[str, Any]
    """For the manifest."""
    ready: Callable[[], None]
    """Waits until the copies are complete."""
    error: Exception | None = None
    """Why there is nothing to write; it must reach all ranks."""

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def write(
    staged: Staged, folder: Folder, ranks: CheckpointRanks, keep: int, broken: Collection[Path]
) -> SavedCheckpoint:
    """Write and publish a checkpoint, then remove older ones; every rank calls it with its part.

    Raises CheckpointError where it cannot be written; the older checkpoints stay then.
    """
    group = ranks.writing

    def finish() -> SavedCheckpoint:
        merged = {name: entry for part in files for name, entry in part.items()}
        assert path is not None
        return folder.finish(path, staged.step, staged.facts, merged)

    path: Path | None = None
    try:
        ranks.together(staged.check, group)
        path = ranks.from_first(lambda: folder.begin(staged.step), group)
        files = ranks.together(functools.partial(_write_states, staged, folder, path), group)
        if staged.facts["sharded"]:
            files += checkpoint_sharded.save(staged.shards, path, ranks)
        newest = ranks.from_first(finish, group)
        library_pulse.saved(sum(file["size"] for part in files for file in part.values()))
    except BaseException as error:
        if ranks.rank == 0 and path is not None:
            folder.discard(path)
        if isinstance(error, OSError):
            raise cannot_write(folder, error) from error
        raise
    if ranks.rank == 0:
        _prune(folder, keep, newest, broken)
    return newest


def _prune(folder: Folder, keep: int, newest: SavedCheckpoint, broken: Collection[Path]) -> None:
    try:
        folder.prune(keep, newest, broken)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {newest.path} is safe, but an older one could not be removed "
            f"({error.strerror}): remove it by hand, or raise keep"
        ) from error


def _write_states(staged: Staged, folder: Folder, temporary: Path) -> Files:
    staged.ready()
    if not temporary.is_dir():
        raise CheckpointError(
            f"{folder.path} is not the same folder on all machines: pass a shared folder"
        )
    files: Files = {}
    for name, state in staged.states.items():
        fill = functools.partial(torch.save, state)
        files[f"{name}.pt"] = folder.disk.write(temporary / f"{name}.pt", fill)
    return files


def cannot_write(folder: Folder, error: OSError) -> CheckpointError:
    """The error with the folder, the cause and the fix."""
    cure = _CURES.get(error.errno or 0, "check that the disk is mounted and works")
    return CheckpointError(
        f"the checkpoint could not be written to {folder.path} ({error.strerror or error}): "
        f"{cure}. The older checkpoints are as they were."
    )


class Background:
    """Runs one function at a time in a thread; `wait` raises its exception.

    It is not a daemon thread: a program that ends waits until its last checkpoint is written.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def start(self, act: Callable[[], object]) -> None:
        """Run `act` once the previous function is done."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(act,), name="flatout-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the function that is running; raises its exception, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _run(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:
            self.error = error
            if not threading.main_thread().is_alive():  # nobody is left to call wait()
                warnings.warn(f"the last checkpoint is missing: {error}", stacklevel=1)
