"""torch's DataLoader, fetching one batch per request, with as many workers as loading needs."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import pickle
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from flatout_agent.limits import local_processes, usable_cores
from flatout_agent.speedups.workers import reachable, worker_safety
from flatout_train.errors import UsageError
from flatout_train.loader.fetching import Parcel, Probe, unpacked

CHEAP_S = {True: 0.001, False: 0.002}
"""Seconds, with and without accelerator: batches that load faster come no faster from a worker."""
FASTEST_STEP_S = {True: 0.002, False: 0.010}
"""Seconds per batch to aim for, with and without accelerator."""
START_S = {"fork": 0.2}
START_OTHERWISE_S = 5.0
"""Seconds to start workers; unless they are forked they import torch and the script first."""
START_FAILURES = (OSError, RuntimeError, ValueError, TypeError, AttributeError, pickle.PickleError)
DIED = (
    "flatout.loader: the worker process died. Most often the machine ran out of memory (pass fewer "
    "workers= or a smaller prefetch=), /dev/shm is too small for the batches in flight (docker run "
    "--shm-size), or a library crashed (workers=0 shows where)"
)


class Requests(Sampler[Any]):
    """Yields requests to the DataLoader, and remembers those that are not answered yet."""

    def __init__(self, length: Callable[[], int]) -> None:
        self.pending: deque[Any] = deque()
        self._length = length
        self._rest: Iterator[Any] = iter(())

    def begin(self, requests: Iterable[Any]) -> None:
        """Continue with these requests; pending ones are dropped."""
        self._rest = iter(requests)
        self.pending.clear()

    def again(self) -> None:
        """Repeat the pending requests, before the remaining ones."""
        self.begin(itertools.chain(list(self.pending), self._rest))

    def __iter__(self) -> Iterator[Any]:
        for request in self._rest:
            self.pending.append(request)
            yield request

    def __len__(self) -> int:
        return self._length()


class Feed(DataLoader[Parcel]):
    """One fetcher's DataLoader. Its workers keep no state, so they live as long as it does."""

    def __init__(
        self,
        fetcher: Dataset[Parcel],
        length: Callable[[], int],
        *,
        pin: bool,
        prefetch: int,
    ) -> None:
        self.requests = Requests(length)
        super().__init__(
            fetcher,
            batch_size=None,
            sampler=self.requests,
            collate_fn=unpacked,
            pin_memory=pin,
            generator=torch.Generator(),  # otherwise each epoch would draw from the global one
        )
        self.failure: str | None = None
        self.prefetch = max(1, prefetch)
        self._quiet = False
        self._dataset_state: list[tuple[str, Any]] | None = None
        self._owner: Callable[[], Any] = lambda: None

    def belongs_to(self, loader: Any) -> None:
        """Set the Loader whose position this feed reports."""
        self._owner = weakref.ref(loader)

    def state_dict(self) -> dict[str, Any]:
        """The Loader's state. Under `flatout run` it marks the number of workers as chosen."""
        owner = self._owner()
        return {} if owner is None else owner.state_dict()

    def set_workers(self, workers: int, quiet: bool = False) -> None:
        """Stop the current workers; start the next pass with this many.

        `quiet`: suppress torch's warning of more workers than cores: they wait most of the time.
        """
        self.close()
        self._quiet = quiet
        # Through the dictionary: DataLoader refuses a later change of persistent_workers.
        vars(self).update(
            num_workers=workers,
            prefetch_factor=self.prefetch if workers else None,
            persistent_workers=workers > 0,
        )

    def close(self) -> None:
        """Stop the workers."""
        vars(self)["_iterator"] = None
        self._dataset_state = None

    def finished(self) -> None:
        """Stop the workers, and note the data set's state: it must not change from now on."""
        self.remember()
        state = self._dataset_state
        self.close()
        self._dataset_state = state

    def renew(self) -> bool:
        """Stop workers that hold an older state of the data set. Returns whether it has changed."""
        stale = self._dataset_state is not None and self._dataset_state != reachable.state(
            self._of_user()
        )
        if stale:
            self.close()
        return stale

    def start(self) -> Iterator[Parcel]:
        """The answers to the requests, in order; loaded without workers where none can start."""
        try:
            batches = self._begun()
        except START_FAILURES as error:
            if not self.num_workers:
                raise
            self.failure = f"0: the workers could not be started ({type(error).__name__}: {error})"
            self.set_workers(0)
            self.requests.again()
            batches = self._begun()
        if self.num_workers:
            self.remember()
        return self._answers(batches)

    def remember(self, anew: bool = False) -> None:
        """Note the data set's state: when it changes, samples loaded before become invalid."""
        if self._dataset_state is None or anew:
            self._dataset_state = reachable.state(self._of_user())

    def _begun(self) -> Iterator[Parcel]:
        with warnings.catch_warnings():
            if self._quiet:
                warnings.filterwarnings("ignore", "This DataLoader will create")
            return iter(self)

    def _of_user(self) -> Any:
        fetcher: Any = self.dataset
        return fetcher.dataset

    def _explained(self, error: Exception) -> Exception:
        """For a worker that died, torch's error with advice; any other error unchanged."""
        if isinstance(error, OSError | EOFError):  # it may have died while its batch was fetched
            try:
                dead = self._dead()
            except RuntimeError as death:  # by torch's handler of SIGCHLD
                error = death
            else:
                pids = ", ".join(map(str, dead))
                text = f"DataLoader worker (pid(s) {pids}) exited unexpectedly"
                error = RuntimeError(text) if dead else error
        if _is_death(error):
            error.add_note(DIED)
        return error

    def _end(self) -> None:
        """Stop the workers now, not when the error that references them is freed.

        Until then torch would raise a worker's death again, anywhere; and another worker started
        meanwhile would inherit the iterator and print that it cannot stop its workers.
        """
        getattr(self._iterator, "_shutdown_workers", lambda: None)()
        self.close()

    def _dead(self) -> list[int]:
        workers = getattr(self._iterator, "_workers", [])
        for worker in workers:
            worker.join(0.1)
        return [worker.pid for worker in workers if not worker.is_alive()]

    def _answers(self, batches: Iterator[Parcel]) -> Iterator[Parcel]:
        while True:
            try:
                parcel = next(batches)
            except StopIteration:
                return
            except Exception as error:
                explained = self._explained(error)
                self._end()
                if explained is error:
                    raise
                raise explained from error
            if parcel.problem is not None:
                self._end()
                raise UsageError(parcel.problem)
            yield parcel


def _is_death(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)


def start_method() -> str:
    """Python's start method for worker processes."""
    return worker_safety.start_method()


def never(feed: Feed, method: str) -> str | None:
    """Why this process cannot have workers, even if they were requested; None: it can."""
    if multiprocessing.current_process().daemon:
        return "this process is a daemon, which may not have child processes"
    return worker_safety.cannot_be_spawned(feed) if method != "fork" else None


def better_not(feed: Feed, method: str) -> str | None:
    """What the data set or the collate holds that does not work in a worker; None: nothing."""
    fetcher: Any = feed.dataset
    parts = SimpleNamespace(dataset=fetcher.dataset, collate_fn=fetcher.collate)
    return worker_safety.held_by_data(parts, method)


def too_small(feed: Feed, batch_size: int) -> str | None:
    """Why shared memory may not hold the batches of one worker, by an estimate; None: it does."""
    fetcher: Any = feed.dataset
    parts = SimpleNamespace(dataset=fetcher.dataset, batch_size=batch_size, batch_sampler=None)
    return worker_safety.too_little_shared_memory(parts, feed.prefetch + 1)


def cores() -> int:
    """Cores for this process: its share of those that the machine's training processes use."""
    return max(1, usable_cores() // local_processes())


def enough(
    probe: Probe,
    batches: int,
    share: int,
    accelerated: bool,
    method: str,
    under_way: int = 0,
    free: int | None = None,
) -> tuple[int, str]:
    """The number of workers, and why, for batches that cost what `probe` measured.

    `share`: cores; `under_way`: bytes of shared memory that one worker's batches take; `free`:
    bytes available, None: no limit. With an accelerator all cores but one may load; on a CPU
    training needs most of them. Samples that wait for a disk or a network use less than a core.
    """
    cost = f"a batch takes {probe.seconds * 1e3:.1f} ms to load"
    if probe.seconds < CHEAP_S[accelerated]:
        return 0, f"{cost}: a worker would not be faster"
    if probe.seconds * batches < START_S.get(method, START_OTHERWISE_S):
        return 0, f"{cost}, an epoch has {batches}: starting workers would not pay off"
    if share < 2 and probe.busy > 0.5:
        return 0, f"{cost}, but there is one core: a worker would take it from training"
    spare = share - 1 if accelerated else max(1, share // 4)
    waits = probe.busy < 0.5  # otherwise it may have waited for a core
    most = max(1, int(spare / max(probe.busy, 0.125))) if waits else spare
    workers = min(most, math.ceil(probe.seconds / FASTEST_STEP_S[accelerated]))
    if free is not None and workers * under_way > free:
        workers = free // under_way
        return workers, f"{cost}; {free / 1e6:.0f} MB of shared memory hold no more of them"
    return workers, f"{cost}, {share} cores"
