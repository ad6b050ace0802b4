"""Sampled stacks of forked loader workers: each samples itself and writes a file.

Spawned workers start without this and stay unseen.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.attach.replacing import Undo, replaced
from flatout_agent.watch.profile.stacks import NONE, StackSampler

POLL_S = 0.02
"""Seconds between two checks of a worker for orders."""
OFF, ON, OVER = range(3)
FETCH = "DatasetFetcher.fetch"
"""torch's function in which a worker prepares a batch."""

FORKS = sys.platform != "win32" and hasattr(os, "fork")


class WorkerStacks:
    """The workers' stacks; made once in the process that trains, before its loaders
    start workers.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._state = mmap.mmap(-1, 1) if FORKS else None
        """One byte that this process writes and its workers read: OFF, ON or OVER."""
        self._undo: Undo = lambda: None
        if FORKS:
            module: Any = torch.utils.data._utils.worker
            self._undo = replaced(module, "_worker_loop", self._sampling(module._worker_loop))

    def _sampling(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        # Pickled by name for a spawned worker, where the name means torch's own function.
        @functools.wraps(loop)
        def worker_loop(*args: Any, **kwargs: Any) -> Any:
            if self._state is not None and self._state[0] != OVER:
                follow = functools.partial(self._follow, self._state)
                threading.Thread(target=follow, name="flatout samples", daemon=True).start()
            return loop(*args, **kwargs)

        return worker_loop

    def start(self) -> None:
        """Let the workers sample."""
        self._order(ON)

    def stop(self) -> None:
        """Let them write their samples."""
        self._order(OFF)

    def remove(self) -> None:
        """Let them stop; later workers do not begin."""
        self._order(OVER)
        self._undo()

    def _order(self, state: int) -> None:
        if self._state is not None:
            self._state[0] = state

    def _follow(self, ordered: mmap.mmap) -> None:
        """Runs in a worker: samples its main thread while ordered to."""
        sampler: StackSampler | None = None
        try:
            while (state := ordered[0]) != OVER:
                if state == ON and sampler is None:
                    sampler = StackSampler(lambda: NONE, threading.main_thread())
                    sampler.start()
                elif state == OFF and sampler is not None:
                    break
                time.sleep(POLL_S)
            if sampler is not None:
                sampler.stop()
                host = sampler.summary(steps=1, step_s=0.0)
                if host is not None:
                    # Write a worker's report, replacing an earlier one. Raises OSError.
                    text = wire.dump(host)
                    path = self._path(os.getpid())
                    descriptor = os.open(
                        f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
                    )
                    try:  # avoids `open`, which is watched
                        os.write(descriptor, text.encode())
                    finally:
                        os.close(descriptor)
                    os.replace(f"{path}.part", path)  # noqa: PTH105
        except Exception:  # nothing is known about this worker then
            return

    def _path(self, pid: int) -> str:
        return os.path.join(self._folder, f"stacks-{pid}.json")  # noqa: PTH118

    def hosts(self, pids: Iterable[int]) -> list[wire.HostSeen]:
        """The reports of these workers; seconds are totals, not per step."""
        hosts = (self._host(pid) for pid in pids)
        return [host for host in hosts if host is not None]

    def _host(self, pid: int) -> wire.HostSeen | None:
        try:
            with open(self._path(pid), encoding="utf-8") as file:  # noqa: PTH123
                return wire.decode(wire.HostSeen, json.load(file))
        except (OSError, ValueError, TypeError):
            return None


def with_workers(host: wire.HostSeen, workers: Iterable[wire.HostSeen]) -> wire.HostSeen:
    """The process that trains with its workers' stacks beside its own; CPU seconds per step."""
    frames, stacks = list(host.frames), list(host.worker_stacks)
    idle_s = None
    index = {frame: number for number, frame in enumerate(frames)}
    for worker in workers:
        numbers = []
        for frame in worker.frames:
            if frame not in index:
                index[frame] = len(frames)
                frames.append(frame)
            numbers.append(index[frame])
        if worker.idle_known:
            # It waited while preparing samples, not for orders.
            fetches = {
                number
                for number, frame in enumerate(worker.frames)
                if frame.function.endswith(FETCH)
            }
            waits = (s.idle_s for s in worker.stacks if not fetches.isdisjoint(s.frames))
            idle_s = (idle_s or 0.0) + sum(waits) / host.steps
        for stack in worker.stacks:
            cpu_s = (stack.s - stack.idle_s) / host.steps
            if not stack.thread and cpu_s > 0:
                path = tuple(numbers[number] for number in stack.frames)
                stacks.append(wire.StackSeen(path, stack.samples, cpu_s))
    ordered = tuple(sorted(stacks, key=lambda stack: -stack.s))
    return dataclasses.replace(
        host, frames=tuple(frames), worker_stacks=ordered, worker_idle_s=idle_s
    )
