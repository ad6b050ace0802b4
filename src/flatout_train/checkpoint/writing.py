"""Writing one staged checkpoint, on all ranks together, and the thread that does it."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout_agent.watch import library_pulse
from flatout_train.checkpoint import files
from flatout_train.checkpoint import sharded as checkpoint_sharded
from flatout_train.checkpoint.files import Folder, SavedCheckpoint
from flatout_train.checkpoint.ranks import CheckpointRanks
from flatout_train.errors import CheckpointError


@dataclasses.dataclass(frozen=True)
class Staged:
    """The state after a step, in host memory."""

    step: int
    states: dict[str, Any]
    """File name without the suffix -> nest; what this rank writes."""
    shards: dict[str, Any]
    """Place in a state -> DTensor on the host."""
    ready: Callable[[], None]
    """Waits until the copies are complete."""
    error: Exception | None = None
    """Why there is nothing to write; it must reach all ranks."""

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def write(staged: Staged, folder: Folder, ranks: CheckpointRanks, keep: int) -> SavedCheckpoint:
    """Write and publish a checkpoint, then remove older ones; every rank calls it with its part.

    Raises CheckpointError if it cannot be written; the older checkpoints stay.
    """
    group = ranks.writing
    path: Path | None = None

    def finish() -> SavedCheckpoint:
        assert path is not None
        return folder.finish(path, staged.step)

    def write_states() -> None:
        assert path is not None
        staged.ready()
        if not path.is_dir():
            raise CheckpointError(
                f"{folder.path} is not the same folder on all machines: pass a shared folder"
            )
        for name, state in staged.states.items():
            files.write(path / f"{name}.pt", state)

    try:
        ranks.together(staged.check, group)
        path = ranks.from_first(lambda: folder.begin(staged.step), group)
        with files.checksummed():
            ranks.together(write_states, group)
            if staged.shards:
                checkpoint_sharded.save(staged.shards, path, ranks)
        newest = ranks.from_first(finish, group)
    except BaseException as error:
        if ranks.rank == 0 and path is not None:
            files.discard(path)
        if isinstance(error, OSError):
            raise cannot_write(folder, error) from error
        raise
    library_pulse.saved(sum(file.stat().st_size for file in newest.path.rglob("*")))
    ranks.from_first(lambda: _prune(folder, keep, newest), group)
    return newest


def _prune(folder: Folder, keep: int, newest: SavedCheckpoint) -> None:
    try:
        folder.prune(keep, newest)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {newest.path} is safe, but an older one could not be removed "
            f"({error.strerror}): remove it by hand, or raise keep"
        ) from error


def cannot_write(folder: Folder, error: OSError) -> CheckpointError:
    """The error with the folder, the cause and the fix."""
    return CheckpointError(
        f"the checkpoint could not be written to {folder.path} ({error.strerror or error}): make "
        "room there, lower keep, or pass a folder that can be written to. The older checkpoints "
        "are as they were."
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
