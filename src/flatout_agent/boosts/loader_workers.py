"""Load batches in worker processes.

## What it does
Sets `num_workers`, `prefetch_factor` and `persistent_workers` on each DataLoader just before it is
iterated for the first time, with as many workers as the cores available to this process allow (CPU
affinity, the cgroup's quota and the other processes of the job are taken into account). The sampler
stays in the main process: the order of the data is the same. A model that trains on the CPU leaves
the workers their cores: it computes with fewer threads, at least one.

## Why it is faster
With `num_workers=0` reading and decoding happen in the training loop: the model waits for each
batch, and loading waits for the model. Workers prepare the next batches in the meantime. Threads
that outnumber the cores left to them wait for each other at the end of every operation.

## When it does nothing
The loader has workers already; the dataset is an IterableDataset (each worker would yield all of
it); it is too short to repay starting processes; the process may use one core only, or is itself a
daemon, which Python allows no children; the dataset holds tensors on an accelerator, an iterator,
or (where workers are forked) an open file; /dev/shm is too small for the batches under way. Where
workers are spawned (Windows, macOS, Python 3.14 on Linux) the script must train inside `if __name__
== "__main__":`, dataset and collate function must be picklable, and the free memory must hold what
each worker has of its own: Python, torch, and a copy of the dataset's arrays and lists.

## What it may change
Batches and their order stay the same for a dataset that answers the same index with the same
sample. Random augmentation draws other numbers, because each worker has its own generators.
Counters and caches in the dataset's own attributes stay in the workers; an error raised by the
dataset reaches the program with the worker's traceback in its message. The sampler runs `workers x
prefetch_factor` batches ahead: a sampler of your own that reacts to training, or draws each index
from the program's random numbers, is affected; one with its own generator may have drawn more from
it when an epoch is left early. Batches live in shared memory, so a program that keeps all of them
needs that much /dev/shm. Changes to the dataset's attributes between epochs are noticed (the
workers are then restarted); in-place changes inside an array over 64 KiB are not. With fewer
threads for a model on the CPU, large sums are split at other points: the last bits may differ.

## How it is undone
The loader's own settings and the number of threads are put back and the workers end; the next
epoch loads in the main process again.

## References
- https://pytorch.org/docs/stable/data.html#multi-process-data-loading
- https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch, Undo
from flatout_agent.limits import local_processes, spare_memory, usable_cores
from flatout_agent.speedups import compute_threads
from flatout_agent.speedups.samples.late_indices import with_workers
from flatout_agent.speedups.workers import worker_safety
from flatout_agent.speedups.workers.worker_reuse import Reuse

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, LoaderFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.LOADER,
    switch=Switch.ITERATOR,
    params={"workers": ("auto", 1, 2, 4, 8), "prefetch_factor": (2,)},
    redraws=True,
)
FEWEST_BATCHES = 8
PERSISTENT_LOADERS = 4
"""The number of loaders that may keep their workers between epochs; a program may make one for each
fold."""
OPEN_FILES = 65_536
"""Each tensor from a worker holds a file descriptor as long as the program keeps it."""
START_FAILURES = (OSError, RuntimeError, ValueError, TypeError, AttributeError, pickle.PickleError)

_persistent: weakref.WeakSet[Any] = weakref.WeakSet()
LEAST_WAIT = 0.03
"""Share of the step: workers take cores, and a start of some tenths of a second in each epoch."""
HANDING_OVER = 1.25
"""A batch takes so much longer in a worker: it goes through shared memory."""
MOST = 8
MOST_SPAWNED = 4
"""The number of workers on Windows and macOS, where each starts Python and imports torch anew."""
SPAWNED_BYTES = {True: 3 << 30, False: 700 << 20}
"""Memory of a spawned worker besides its data, where CUDA is used and elsewhere."""
SERIAL = 0.3
"""Share of a training step on the CPU that more threads do not make shorter."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why no loader of this job can get workers, or None if at least one can."""
    share = _share(facts.cores, facts.world_size)
    workers = _workers(params, share, facts.device != "cpu", facts.system)
    if share < 2:
        return f"{share} usable core for this process: a worker would take it from training"
    if workers > share:
        return f"{workers} workers on {share} usable cores"
    if workers > _most(facts.system):
        return f"{workers} workers, each of which starts Python and imports torch anew"
    auto = _auto(share, facts.device != "cpu", facts.system)
    if params.get("workers", "auto") != "auto" and workers == auto:
        return f"the same as auto here ({workers})"
    if not facts.loaders:
        return "no DataLoader was seen"
    if facts.wait_share is not None and facts.wait_share < LEAST_WAIT:
        return f"only {facts.wait_share:.1%} of the step is waiting for data"
    reasons = [_why_not(loader) for loader in facts.loaders]
    return None if None in reasons else reasons[0]


def promise(facts: JobFacts, params: Params) -> float:
    """The step bounded by training, by loading, and on a CPU by the cores that both share."""
    if facts.wait_share is None:
        return 1.1
    share = _share(facts.cores, facts.world_size)
    workers = max(1, min(share, _workers(params, share, facts.device != "cpu", facts.system)))
    training, loading = 1 - facts.wait_share, HANDING_OVER * facts.wait_share
    if facts.device != "cpu":
        return max(1.0, 1 / max(training, loading / workers, 0.05))
    threads = _threads(share, workers)
    work = loading + training * (SERIAL + (1 - SERIAL) * share)
    training *= SERIAL + (1 - SERIAL) * share / threads
    return max(1.0, 1 / max(training, loading / workers, work / share, 0.05))


def apply(job: Job, target: torch.utils.data.DataLoader[Any], params: Params) -> Applied:
    """Give this loader workers, unless one of its properties rules that out."""
    share = _share(usable_cores(), local_processes())
    workers = _workers(params, share, _accelerated(), sys.platform)
    method = worker_safety.start_method()
    reason = _why_not_target(target, workers, share, params, method)
    if reason is not None:
        raise Declined(reason)
    if method != "fork":
        workers = min(workers, _fitting(target))
    return _give_workers(job, target, workers, int(params.get("prefetch_factor", 2)), method)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The DataLoader's arguments that do the same."""
    share = _share(facts.cores, facts.world_size)
    workers = _workers(params, share, facts.device != "cpu", facts.system)
    count = _threads(share, workers)
    threads = [f"torch.set_num_threads({count})"] if facts.device == "cpu" else []
    lines = [
        *threads,
        "# in DataLoader(...); on Windows and macOS (and with Python 3.14) the training code must",
        '# stand inside `if __name__ == "__main__":`',
        "loader = DataLoader(",
        "    dataset,",
        "    # what it is given now, and:",
        f"    num_workers={workers},",
        f"    prefetch_factor={params.get('prefetch_factor', 2)},",
        "    persistent_workers=True,",
        ")",
    ]
    return "\n".join(lines)


def _share(cores: int, processes: int) -> int:
    return max(1, cores // max(1, processes))


def _most(system: str) -> int:
    return MOST if system == "linux" else MOST_SPAWNED


def _auto(share: int, accelerated: bool, system: str) -> int:
    """On an accelerator the cores are free for loading; on a CPU training needs most of them."""
    return max(1, min(_most(system), share - 1)) if accelerated else max(1, min(4, share // 4))


def _workers(params: Params, share: int, accelerated: bool, system: str) -> int:
    workers = params.get("workers", "auto")
    return _auto(share, accelerated, system) if workers == "auto" else int(workers)


def _threads(share: int, workers: int) -> int:
    """What is left for a model on the CPU beside so many workers."""
    return max(1, share - workers)


def _accelerated() -> bool:
    import torch

    backends = (torch.cuda, getattr(torch, "xpu", None), torch.backends.mps)
    return any(backend is not None and backend.is_available() for backend in backends)


def _why_not(loader: LoaderFacts) -> str | None:
    if loader.num_workers:
        return f"the loader already has {loader.num_workers} workers"
    if loader.iterable:
        return "an IterableDataset: each worker would yield all of its data"
    if loader.batches is not None and loader.batches < FEWEST_BATCHES:
        return f"only {loader.batches} batches: starting workers would not pay"
    if loader.start_method != "fork" and loader.main_guard is None:
        return "the program is not a script file, so spawned workers could not import it"
    if loader.start_method != "fork" and not loader.main_guard:
        return 'the script trains outside of `if __name__ == "__main__":`, so spawned workers would'
    return None


def _why_not_target(
    loader: torch.utils.data.DataLoader[Any], workers: int, share: int, params: Params, method: str
) -> str | None:
    import torch

    if loader.num_workers:
        return f"the loader already has {loader.num_workers} workers"
    if loader._iterator is not None:
        return "the loader is already being iterated"
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return "an IterableDataset: each worker would yield all of its data"
    if hasattr(loader, "state_dict"):
        return "the loader saves its position, which depends on its number of workers"
    if share < 2:
        return f"{share} usable core for this process: a worker would take it from training"
    if workers > share:
        return f"{workers} workers on {share} usable cores"
    if multiprocessing.current_process().daemon:
        return "this process is a daemon, which Python allows no children"
    batches = _length(loader)
    if batches is not None and batches < FEWEST_BATCHES:
        return f"only {batches} batches: starting workers would not pay"
    reason = worker_safety.held_by_data(loader, method)
    under_way = workers * (int(params.get("prefetch_factor", 2)) + 1)
    return reason or worker_safety.too_little_shared_memory(loader, under_way)


def _fitting(loader: torch.utils.data.DataLoader[Any]) -> int:
    """The most workers that can be spawned here. Raises Declined if there is room for none."""
    import torch

    spawning, spare = worker_safety.spawning(loader), spare_memory()
    if spawning.reason is not None:
        raise Declined(spawning.reason)
    if spare is None:
        return _most(sys.platform)
    each = SPAWNED_BYTES[torch.cuda.is_available()] + spawning.copied_bytes
    if spare < each:
        told = f"a spawned worker would take {each / 1e9:.1f} GB, and {spare / 1e9:.1f} GB are free"
        raise Declined(told)
    return min(_most(sys.platform), spare // each)


def _length(loader: torch.utils.data.DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a sampler without a length
        return None


SETTINGS = (
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "worker_init_fn",
    "_DataLoader__multiprocessing_context",
)


def _give_workers(
    job: Job, loader: torch.utils.data.DataLoader[Any], workers: int, prefetch: int, method: str
) -> Applied:
    names = vars(loader)
    settings = {name: names[name] for name in SETTINGS}
    keep = len(_persistent) < PERSISTENT_LOADERS
    generators = worker_safety.random_generators(loader) if method == "fork" else []
    # Through the dictionary: DataLoader refuses a later change of persistent_workers, and
    # naming the context keeps the program free to choose its own default afterwards.
    names.update(num_workers=workers, prefetch_factor=prefetch, persistent_workers=keep)
    names["_DataLoader__multiprocessing_context"] = multiprocessing.get_context(method)
    if generators:
        names["worker_init_fn"] = _Reseeds(loader.worker_init_fn, generators)
    if keep:
        _persistent.add(loader)
    outcome = _Outcome(workers)
    reuse = Reuse(loader)
    reference = weakref.ref(loader)  # the program may drop the loader; its workers then end
    undo_threads = _leave_cores(workers)
    names["_get_iterator"] = functools.partial(_start, reference, settings, outcome, undo_threads)

    def layer(batches: Iterator[Any]) -> Iterator[Any]:
        outcome.epochs += 1
        return reuse(batches) if keep and outcome.failure is None else batches

    undo_layer, undo_limit = job.wrap_batches(loader, layer), _allow_open_files()

    def undo() -> None:
        undo_layer()
        undo_limit()
        undo_threads()
        loader = reference()
        if loader is not None:
            _put_back(loader, settings)
            loader._iterator = None

    return Applied(undo, functools.partial(outcome.engagement, reuse))


def _leave_cores(workers: int) -> Undo:
    """Compute with fewer threads beside workers on a CPU, unless the number was chosen."""
    import torch

    threads = _threads(_share(usable_cores(), local_processes()), workers)
    if _accelerated() or compute_threads.named() or torch.get_num_threads() <= threads:
        return lambda: None
    return compute_threads.use(threads)


def _put_back(loader: torch.utils.data.DataLoader[Any], settings: dict[str, Any]) -> None:
    vars(loader).update(settings)
    vars(loader).pop("_get_iterator", None)
    _persistent.discard(loader)


class _Outcome:
    """The outcome of starting the workers, for the report."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.epochs = 0
        self.failure: str | None = None

    def engagement(self, reuse: Reuse) -> tuple[bool, str]:
        if self.failure is not None:
            return False, f"the workers could not be started: {self.failure}"
        if not self.epochs:
            return False, "the loader was not iterated"
        restarts = f", started {reuse.starts} times" if reuse.starts > 1 else ""
        return True, f"{self.workers} worker{'s' if self.workers > 1 else ''}{restarts}"


def _start(
    reference: weakref.ref[Any], settings: dict[str, Any], outcome: _Outcome, undo_threads: Undo
) -> Iterator[Any]:
    """Replaces the loader's `_get_iterator`: if workers cannot start, it does without them."""
    import torch

    loader = reference()
    if loader is None:
        raise ReferenceError("the loader is gone")
    generator = loader.generator or torch.default_generator
    drawn = generator.get_state()
    try:
        return with_workers(loader)
    except START_FAILURES as error:
        outcome.failure = f"{type(error).__name__}: {error}"
    generator.set_state(drawn)
    undo_threads()
    _put_back(loader, settings)
    return type(loader)._get_iterator(loader)  # type: ignore[no-any-return]


class _Reseeds:
    """A worker_init_fn: the dataset's own generators must not draw the same in every worker."""

    def __init__(self, init: Callable[[int], None] | None, generators: list[Any]) -> None:
        self._own, self._generators = init, generators

    def __call__(self, worker: int) -> None:
        import torch

        for index, generator in enumerate(self._generators):
            worker_safety.reseed(generator, (torch.initial_seed() + 7919 * index) % 2**32)
        if self._own is not None:
            self._own(worker)


def _allow_open_files() -> Undo:
    if sys.platform != "linux":
        return lambda: None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= more:
        return lambda: None
    resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))

    def undo() -> None:
        if len(os.listdir("/proc/self/fd")) < soft // 2:  # noqa: PTH208
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return undo
