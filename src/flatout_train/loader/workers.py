"""The number of worker processes of a loader: as many as the first batch shows to be needed."""

from __future__ import annotations

import math
import multiprocessing
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from flatout_agent.limits import local_processes, usable_cores
from flatout_agent.speedups.workers import worker_safety
from flatout_train.loader.fetching import BatchedDataset
from flatout_train.loader.sampling import Request

CHEAP_S = {True: 0.001, False: 0.002}
"""Seconds, with and without accelerator: batches that load faster come no faster from a worker."""
FASTEST_STEP_S = {True: 0.002, False: 0.010}
"""Seconds per batch to aim for, with and without accelerator."""
START_S = {"fork": 0.2}
START_OTHERWISE_S = 5.0
"""Seconds to start workers; unless they are forked they import torch and the script first."""


@dataclass(frozen=True)
class LoadingCost:
    """The cost of loading one batch."""

    seconds: float
    busy: float
    """Fraction of that time in which a core was used; the rest was waiting for data."""


def chosen(
    batches: BatchedDataset,
    first: Request,
    prefetch: int,
    epoch: int,
    accelerated: bool,
    method: str | None = None,
) -> tuple[int, str]:
    """The number of workers, and why. `epoch`: batches in an epoch."""
    method = worker_safety.start_method() if method is None else method
    reason = why_none(batches.dataset, batches.collate, method, len(first.indices), prefetch)
    if reason is not None:
        return 0, reason
    cost = _cost(batches, first, method)
    if cost is None:
        return 0, "loading a batch failed in a worker"
    return enough(cost, epoch, cores(), accelerated, method)


def why_none(dataset: Any, collate: Any, method: str, batch_size: int, prefetch: int) -> str | None:
    """Why this process cannot, or should not, have workers, or None if it can."""
    if multiprocessing.current_process().daemon:
        return "this process is a daemon, which may not have child processes"
    parts = SimpleNamespace(
        dataset=dataset,
        collate_fn=collate,
        worker_init_fn=None,
        batch_size=batch_size,
        batch_sampler=None,
    )
    reason = worker_safety.held_by_data(parts, method)
    if reason is None and method != "fork":
        reason = worker_safety.cannot_be_spawned(parts)
    return reason or worker_safety.too_little_shared_memory(parts, max(1, prefetch) + 1)


def cores() -> int:
    """Cores for this process: its share of those that the machine's training processes use."""
    return max(1, usable_cores() // local_processes())


def enough(
    cost: LoadingCost, batches: int, share: int, accelerated: bool, method: str
) -> tuple[int, str]:
    """The number of workers, and why, for batches of this cost, on `share` cores.

    With an accelerator all cores but one may load; on a CPU training needs most of them.
    """
    told = f"a batch takes {cost.seconds * 1e3:.1f} ms to load"
    if cost.seconds < CHEAP_S[accelerated]:
        return 0, f"{told}: a worker would not be faster"
    if cost.seconds * batches < START_S.get(method, START_OTHERWISE_S):
        return 0, f"{told}, an epoch has {batches}: starting workers would not pay off"
    if share < 2 and cost.busy > 0.5:
        return 0, f"{told}, but there is one core: a worker would take it from training"
    spare = max(1, share - 1 if accelerated else share // 4)
    return min(
        spare, math.ceil(cost.seconds / FASTEST_STEP_S[accelerated])
    ), f"{told}, {share} cores"


def _cost(batches: BatchedDataset, request: Request, method: str) -> LoadingCost | None:
    """The cost of a batch, or None if it could not be loaded.

    If workers are forked, a forked process measures it, since files opened here would be shared
    with the workers.
    """
    if method != "fork":
        return timed(batches, request)
    context: Any = multiprocessing.get_context("fork")  # which Windows does not have
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(sender, batches, request), daemon=True)
    process.start()
    sender.close()
    try:
        return receiver.recv()  # type: ignore[no-any-return]
    except EOFError:
        return None
    finally:
        process.join()
        receiver.close()


def _tell(sender: Any, batches: BatchedDataset, request: Request) -> None:
    torch.set_num_threads(1)  # as in a worker
    try:
        sender.send(timed(batches, request))
    except Exception:
        sender.send(None)  # the batch fails again at a place where its error can be raised


def timed(batches: BatchedDataset, request: Request) -> LoadingCost:
    """The cost of the second time: the first also opens files and imports modules."""
    batches[request]
    began, worked = time.perf_counter(), time.process_time()
    batches[request]
    seconds, busy = time.perf_counter() - began, time.process_time() - worked
    return LoadingCost(seconds, min(1.0, busy / max(seconds, 1e-9)))
