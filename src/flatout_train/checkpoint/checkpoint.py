"""Checkpoints from which training resumes as if it had never stopped."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

from flatout_agent.watch import library_pulse
from flatout_train.checkpoint import random_states, termination
from flatout_train.checkpoint import reading as checkpoint_reading
from flatout_train.checkpoint import sharded as checkpoint_sharded
from flatout_train.checkpoint.files import RANDOM_STATES, Folder
from flatout_train.checkpoint.ranks import Agreement, CheckpointRanks
from flatout_train.checkpoint.reading import file_name, read_all
from flatout_train.checkpoint.states import HostCopies
from flatout_train.checkpoint.tracked import Tracked
from flatout_train.checkpoint.writing import Background, Staged, write
from flatout_train.errors import CheckpointError, UsageError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Checkpoint:
    """Saves everything that a bit-identical resume needs, and finds it again after any failure.

        checkpoint = flatout.Checkpoint("run", every="10m", step=step, loader=loader)
        checkpoint.resume()
        while checkpoint.steps < 100_000:
            for batch in loader:
                step(batch)
                checkpoint.after_step()
        checkpoint.save()
        checkpoint.close()

    dir: folder for this training run only, with one folder `step-00000500` per checkpoint. Under
        torch.distributed it must be a folder that all ranks share.
    every: optimizer steps between checkpoints, or a time ("90s", "10m", "2h"), or None for only
    `save`. keep: number of checkpoints to keep; older ones are removed once a new one is safe.
    grace: seconds that SIGTERM waits for the current step. At the end of that step the state is
        saved and the process ends as SIGTERM would have ended it: the program's own handler is
        called, or `SystemExit(143)` is raised. After that time it ends at once. See
        `flatout_train.checkpoint.termination`.
    tracked: objects with `state_dict` and `load_state_dict`, by names of your choice: a model (also
        wrapped by DDP, FSDP2 or torch.compile), optimizer, scheduler, GradScaler, a `train_step`, a
        `loader`; or a `torch.Generator`. The random states of Python, NumPy and torch on each
        device are always saved. States may hold tensors, numbers, strings, and lists, tuples, sets
        and dicts of them; `weights_only=True` reads them, so that these files cannot run code.

    Saving stops training only for the copy to host memory (on CUDA not even that: the copies are
    queued on the device). That memory is kept for the next save: as much as the state's size; on
    CUDA it is page-locked, and torch rounds each tensor up to a power of two, so it may be nearly
    twice as much. A thread writes the files, by `torch.save`, one for each object; a save that
    starts before it is done waits for it: increase `every` then.

    Under torch.distributed all ranks create it, with the same arguments, and call each method at
    the same steps. State that all ranks share is copied and written by rank 0; random states,
    loaders and other objects by each rank; sharded tensors by `torch.distributed.checkpoint`, whose
    index is a pickle: load only what you trust. The number of ranks may differ on resume:
    additional ranks keep their own random states, and get rank 0's state of the other objects.

    Under `flatout run --ranks`, `--gpus` or `--nodes` all ranks save at the same step too; rank 0
    alone writes to `dir`, and any number of ranks resumes from it. The same number of ranks
    continues bit for bit, also with dropout; with another number the model draws other random
    numbers, and a warning says so.

    Raises UsageError for objects that cannot be tracked, and CheckpointError if a checkpoint cannot
    be written or loaded. A failed save leaves the training and the older checkpoints as they were.
    """

    def __init__(
        self,
        dir: str | os.PathLike[str],
        *,
        every: int | str | None = 500,
        keep: int = 3,
        grace: float = 30.0,
        **tracked: Any,
    ) -> None:
        self._every, self._period = _every(every)
        if keep < 1:
            raise UsageError(f"keep={keep}: pass the number of checkpoints to keep, 1 or more")
        if grace < 0:
            raise UsageError(
                f"grace={grace}: pass the seconds that SIGTERM may wait for a step, 0 or more"
            )
        if not tracked:
            raise UsageError(
                "nothing is tracked: pass it by name, as in "
                "Checkpoint(dir, model=model, optimizer=optimizer)"
            )
        if len({name.casefold() for name in tracked}) < len(tracked):
            raise UsageError("tracked names must differ in more than upper and lower case")
        self._tracked = [Tracked(name, thing) for name, thing in tracked.items()]
        self._folder, self._keep = Folder(dir), keep
        self._copies, self._background = HostCopies(), Background()
        self._watch = termination.Watch(grace)
        self._ranks: CheckpointRanks | None = None
        self._agreement: Agreement | None = None
        self._may_save = self._closed = False
        self._done = 0
        self._look_at = 0
        self._clock = float("inf") if self._period is None else time.monotonic() + self._period

    @property
    def steps(self) -> int:
        """Optimizer steps since training began, including those before `resume`."""
        return self._done

    def resume(self) -> int:
        """Load the newest intact checkpoint into the tracked objects.

        Returns the number of optimizer steps done, or 0 if there is no checkpoint. Broken
        checkpoints are skipped with a warning that names them. Raises CheckpointError if no
        checkpoint can be read (nothing is loaded then), or if the state does not fit the tracked
        objects.
        """
        ranks = self._begin()
        self.wait()
        newest = checkpoint_reading.newest(self._folder, ranks)
        ranks.check_alike(0 if newest is None else newest.step, self._folder.path)
        if newest is not None:
            self._load(newest.path, ranks)
            ranks.wait_for_all()
            self._done = self._look_at = newest.step
        self._may_save = True  # not if it failed: another training would be mixed with this one
        return self._done

    def after_step(self) -> None:
        """Call once after each optimizer step: saves when a checkpoint is due or a signal came.

        Raises the CheckpointError of a save that failed in the background, once: at the next step,
        under torch.distributed on all ranks alike at the next save.
        """
        done = self._done = self._done + 1
        if (
            done < self._look_at
            and not self._watch.request
            and self._background.error is None
            and time.monotonic() < self._clock
        ):
            return
        self._look(done)

    def save(self) -> None:
        """Save now: returns as soon as the state is copied; a thread writes it (see `wait`).

        Raises CheckpointError if the state cannot be saved, or the previous save failed.
        """
        ranks = self._begin()
        self._check_folder(ranks)
        self.wait()
        if ranks.writes:
            library_pulse.saving()
            staged = self._stage(ranks)
            folder, keep = self._folder, self._keep
            self._background.start(lambda: write(staged, folder, ranks, keep))
        if self._period is not None:
            self._clock = time.monotonic() + self._period

    def wait(self) -> None:
        """Wait until the last save is safe on the disk; raises CheckpointError if it failed."""
        self._background.wait()

    def close(self) -> None:
        """Wait for the last checkpoint and restore the signal handlers. It does not save."""
        self._closed = True
        self._watch.close()
        self.wait()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as failed:
            if error is None:
                raise
            warnings.warn(str(failed), stacklevel=2)  # the exception in flight takes precedence

    def _begin(self) -> CheckpointRanks:
        if self._closed:
            raise UsageError("this Checkpoint is closed: create a new one")
        if self._ranks is None:
            self._ranks = CheckpointRanks()
            self._agreement = self._ranks.agreement()
        return self._ranks

    def _check_folder(self, ranks: CheckpointRanks) -> None:
        """Refuse to mix a new training run with the checkpoints of an older one."""
        if self._may_save or not ranks.writes:
            return
        entries = ranks.from_first(lambda: checkpoint_reading.entries(self._folder))
        if entries:
            raise CheckpointError(
                f"{self._folder.path} holds checkpoints of up to {entries[0].step} steps: call "
                "resume() before the first step to continue from them, or pass another folder"
            )
        self._may_save = True

    def _look(self, done: int) -> None:
        ranks = self._begin()
        self._check_folder(ranks)
        request, is_late = self._watch.request, time.monotonic() >= self._clock
        next_at = sys.maxsize
        if self._agreement is not None:
            request, is_late = self._agreed(self._agreement, done, request, is_late)
            next_at = self._agreement.next_at
        if self._background.error is not None and ranks.size == 1:
            self.wait()
        if is_late or request or (self._every is not None and done % self._every == 0):
            self._watch.saving = bool(request)
            self.save()
        if request:
            self.wait()
            self._watch.done()
        if self._every is not None:
            next_at = min(next_at, done + self._every - done % self._every)
        self._look_at = next_at

    def _agreed(
        self, agreement: Agreement, done: int, request: int, is_late: bool
    ) -> tuple[int, bool]:
        """The request, and whether a checkpoint is due, as all ranks agree on for this step."""
        if done < agreement.next_at:
            return 0, False
        request, any_late = agreement.meet(done, request, int(is_late))
        if request >= termination.END:
            self._watch.ask(request)
        return request, bool(any_late)

    def _stage(self, ranks: CheckpointRanks) -> Staged:
        copies = self._copies
        copies.begin()
        states: dict[str, Any] = {}
        error: Exception | None = None
        try:
            for tracked in self._tracked:
                copies.only_shards = tracked.alike and ranks.rank > 0
                state = copies.copy(tracked.state(), tracked.name)
                if not copies.only_shards:
                    states[file_name(tracked.name, ranks.rank)] = state
            copies.only_shards = False
            drawn = {**random_states.capture(), **ranks.carried()}
            states[file_name(RANDOM_STATES, ranks.rank)] = copies.copy(drawn, RANDOM_STATES)
        except Exception as failure:
            if ranks.size == 1:
                raise
            error = failure  # the other ranks wait for this rank's result
        copies.started()
        return Staged(self._done, states, copies.shards, copies.finish, error)

    def _load(self, path: Path, ranks: CheckpointRanks) -> None:
        """Read everything before anything is loaded, on all ranks."""
        things = self._tracked
        current = {tracked.name: tracked.state() for tracked in things}
        states: dict[str, Any] = {}
        ranks.together(lambda: states.update(read_all(path, ranks.rank, list(current))))
        states = checkpoint_sharded.load(states, current, things, path, ranks.loop)
        ranks.together(lambda: _load_into(things, states, path))
        if checkpoint_reading.own_file(path, RANDOM_STATES, ranks.rank):
            random = checkpoint_reading.read(path, RANDOM_STATES, ranks.rank)
            random_states.restore(random)
            if differs := ranks.go_on(random):
                warnings.warn(differs, stacklevel=3)


def _load_into(things: list[Tracked], states: dict[str, Any], path: Path) -> None:
    for tracked in things:
        try:
            tracked.load(states[tracked.name])
        except Exception as error:
            name = tracked.name
            raise CheckpointError(
                f"{name} in {path} does not fit the {name} of this program: build it as it was "
                f"when the checkpoint was written, or pass Checkpoint another folder. {error}"
            ) from error


def _every(every: int | str | None) -> tuple[int | None, float | None]:
    """Steps, and seconds, between two checkpoints."""
    if every is None:
        return None, None
    if type(every) is int and every > 0:
        return every, None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([smh])", str(every))
    if match is None or float(match[1]) == 0:
        raise UsageError(f'every={every!r}: pass steps (500), a time ("10m", "90s", "2h"), or None')
    return None, float(match[1]) * _UNITS[match[2]]
