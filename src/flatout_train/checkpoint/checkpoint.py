"""Checkpoints from which a training goes on as if nothing had happened."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from types import TracebackType
from typing import Any

import torch

from flatout_train.checkpoint import random_states, termination
from flatout_train.checkpoint import reading as checkpoint_reading
from flatout_train.checkpoint import sharded as checkpoint_sharded
from flatout_train.checkpoint.files import Folder
from flatout_train.checkpoint.ranks import Agreement, Ranks
from flatout_train.checkpoint.reading import RANDOM_STATES, Found, file_name, read_all
from flatout_train.checkpoint.states import Staging
from flatout_train.checkpoint.tracked import Tracked, differences, load_all, mismatch, put_back
from flatout_train.checkpoint.writing import Background, Staged, write
from flatout_train.errors import CheckpointError, UsageError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Checkpoint:
    """Saves all that a training needs to go on bit for bit, and finds it again after any end.

        checkpoint = flatout.Checkpoint("run", every="10m", step=step, loader=loader)
        checkpoint.resume()
        while checkpoint.steps < 100_000:
            for batch in loader:
                step(batch)
                checkpoint.after_step()
        checkpoint.save()
        checkpoint.close()

    dir: folder of this training alone; one folder `step-00000500` in it per checkpoint. Under
        torch.distributed a folder that all ranks see.
    every: optimizer steps between checkpoints, or a time ("90s", "10m", "2h"); None: only `save`.
    keep: how many to keep; older ones go once a new one is safe.
    grace: seconds that a SIGTERM waits for the step under way. At the end of that step the state
        is saved and the process ends as SIGTERM would have ended it: the program's own handler is
        called, or `SystemExit(143)` is raised. After that time it ends at once. See
        `flatout_train.checkpoint.termination`.
    tracked: by a name of your choice whatever has `state_dict` and `load_state_dict`: a model (also
        wrapped by DDP, FSDP2 or torch.compile), optimizer, scheduler, GradScaler, `train_step`'s
        step, `loader`; or a `torch.Generator`. The random states of Python, NumPy and torch on each
        device are always saved. States may hold tensors, numbers, strings, and lists, tuples, sets
        and dicts of them; files are read with `weights_only=True`, so that they can run no code.

    Saving stops the training only for as long as the copy to host memory takes (on CUDA not even
    that: the copies are queued on the device). That memory is kept: as much as the state has; on
    CUDA it is page-locked, and torch rounds each tensor's up to a power of two, so that it may be
    nearly twice as much. A thread writes; a save that comes before it is done waits for it: raise
    `every` then.

    Under torch.distributed all ranks make it, with the same arguments, and call each method at the
    same steps. What all have alike is written by rank 0, sharded tensors, random states, loaders
    and other things by each rank. The number of ranks may differ when it resumes: ranks that were
    not there keep the random states that they have, and get what rank 0 saved of the rest.

    Raises UsageError for what cannot be tracked, and CheckpointError where a checkpoint cannot be
    written or loaded. A failed save leaves the training and the older checkpoints as they were.
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
            raise UsageError(f"keep={keep}: at least one checkpoint must be kept")
        if grace < 0:
            raise UsageError(f"grace={grace}: give the seconds that SIGTERM may wait for a step")
        if not tracked:
            raise UsageError(
                "nothing is tracked: Checkpoint(dir, model=model, optimizer=optimizer)"
            )
        if len({name.casefold() for name in tracked}) < len(tracked):
            raise UsageError("tracked names must differ in more than upper and lower case")
        self._tracked = [Tracked(name, thing) for name, thing in tracked.items()]
        self._folder, self._keep = Folder(dir), keep
        self._staging, self._background = Staging(), Background()
        self._watch = termination.Watch(grace)
        self._ranks: Ranks | None = None
        self._agreement: Agreement | None = None
        self._broken: list[Any] = []
        self._may_save = self._closed = False
        self._done = 0
        self._look_at = 0
        self._clock = float("inf") if self._period is None else time.monotonic() + self._period

    @property
    def steps(self) -> int:
        """Optimizer steps done since the training began, those before `resume` included."""
        return self._done

    def resume(self) -> int:
        """Load the newest good checkpoint into what is tracked; the steps done (0: none found).

        Broken checkpoints are passed over with a warning that names them. CheckpointError where
        the state does not fit what is tracked, or where no checkpoint can be read: nothing is
        loaded then.
        """
        ranks = self._begin()
        self.wait()
        found = checkpoint_reading.newest(self._folder, ranks)
        self._may_save = True
        if found is None:
            return 0
        self._load(found, ranks)
        self._broken = found.broken
        self._done = self._look_at = found.entry.step
        return self._done

    def after_step(self) -> None:
        """Call once after each optimizer step: saves when it is time to, or a signal asked for it.

        Raises the CheckpointError of a save that failed in the background, once.
        """
        done = self._done = self._done + 1
        if (
            done < self._look_at
            and not self._watch.asked
            and self._background.error is None
            and time.monotonic() < self._clock
        ):
            return
        self._look(done)

    def save(self) -> None:
        """Save now: returns as soon as the state is copied; a thread writes it (see `wait`)."""
        ranks = self._begin()
        self._check_folder(ranks)
        self.wait()
        staged = self._stage(ranks)
        folder, keep, broken = self._folder, self._keep, self._broken
        self._background.start(lambda: write(staged, folder, ranks, keep, broken))
        if self._period is not None:
            self._clock = time.monotonic() + self._period

    def wait(self) -> None:
        """Wait until what was saved is safe on the disk; raises what went wrong with it."""
        self._background.wait()

    def close(self) -> None:
        """Wait for the last checkpoint and put the signal handlers back. It does not save."""
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
            warnings.warn(str(failed), stacklevel=2)  # the error under way is the one to tell

    def _begin(self) -> Ranks:
        if self._closed:
            raise UsageError("this Checkpoint is closed: make a new one")
        if self._ranks is None:
            self._ranks = Ranks()
            self._agreement = self._ranks.agreement() if self._ranks.size > 1 else None
        return self._ranks

    def _check_folder(self, ranks: Ranks) -> None:
        """Refuse to mix a new training with the checkpoints of an older one."""
        if self._may_save:
            return
        entries = ranks.from_first(lambda: checkpoint_reading.entries(self._folder))
        if entries:
            raise CheckpointError(
                f"{self._folder.path} holds checkpoints of up to {entries[0].step} steps: call "
                "resume() before the first step to go on from there, or give another folder"
            )
        self._may_save = True

    def _look(self, done: int) -> None:
        ranks = self._begin()
        self._check_folder(ranks)
        if self._background.error is not None:
            self.wait()
        asked, late = self._watch.asked, time.monotonic() >= self._clock
        next_at = sys.maxsize
        if self._agreement is not None:
            asked, late = self._agreed(self._agreement, done, asked, late)
            next_at = self._agreement.next_at
        if late or asked or (self._every is not None and done % self._every == 0):
            self._watch.saving = bool(asked)
            self.save()
        if asked:
            self.wait()
            self._watch.done()
        if self._every is not None:
            next_at = min(next_at, done + self._every - done % self._every)
        self._look_at = next_at

    def _agreed(self, agreement: Agreement, done: int, asked: int, late: bool) -> tuple[int, bool]:
        """What all ranks do at this step, whatever this one alone was asked."""
        if done < agreement.next_at:
            return 0, False
        asked, any_late = agreement.meet(done, asked, int(late))
        if asked == termination.END:
            self._watch.ask()
        return asked, bool(any_late)

    def _stage(self, ranks: Ranks) -> Staged:
        self._staging.begin()
        states: dict[str, Any] = {}
        error: Exception | None = None
        try:
            for one in self._tracked:
                state = self._staging.copy(one.state(), one.name)
                if ranks.rank == 0 or not one.alike:
                    states[file_name(one.name, ranks.rank)] = state
            random = self._staging.copy(random_states.capture(), RANDOM_STATES)
            states[file_name(RANDOM_STATES, ranks.rank)] = random
        except Exception as failed:
            if ranks.size == 1:
                raise
            error = failed  # the other ranks are waiting to hear of it
        self._staging.started()
        facts = {
            "torch": torch.__version__,
            "world_size": ranks.size,
            "tracked": {one.name: type(one.thing).__qualname__ for one in self._tracked},
            "sharded": bool(self._staging.shards),
        }
        shards = self._staging.shards
        return Staged(self._done, states, shards, facts, self._staging.finish, error)

    def _load(self, found: Found, ranks: Ranks) -> None:
        """Load all or nothing, on all ranks alike."""
        things, path, staging = self._tracked, found.entry.path, Staging()
        current = {one.name: one.state() for one in things}
        states: dict[str, Any] = {}
        before: dict[str, Any] = {}

        def read() -> None:
            states.update(read_all(found, ranks.rank, current))
            for one in things:
                before[one.name] = staging.copy(current[one.name], one.name)

        def load() -> None:
            odd = {name: differences(states[name], current[name]) for name in states}
            if failed := load_all(states, things):
                name, error = failed
                raise mismatch(name, path, odd[name], error) from error

        ranks.together(read)
        states = checkpoint_sharded.load(states, current, things, path, ranks.loop)
        staging.finish()
        try:
            ranks.together(load)
        except CheckpointError:
            for name, state in before.items():
                before[name] = checkpoint_sharded.fill(state, staging.shards)
            put_back(before, things)
            raise
        if checkpoint_reading.own_file(found, RANDOM_STATES, ranks.rank):
            random_states.restore(checkpoint_reading.read(found, RANDOM_STATES, ranks.rank))


def _every(every: int | str | None) -> tuple[int | None, float | None]:
    """Steps, and seconds, between two checkpoints."""
    if every is None:
        return None, None
    if type(every) is int and every > 0:
        return every, None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([smh])", str(every))
    if match is None or float(match[1]) == 0:
        raise UsageError(f'every={every!r}: give steps (500), a time ("10m", "90s", "2h"), or None')
    return None, float(match[1]) * _UNITS[match[2]]
