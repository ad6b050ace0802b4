"""The queue before the model: requests that can go through it together do."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from flatout_programs.serving.figures import Figures
from flatout_programs.serving.protocol import Array, specs
from flatout_programs.serving.saying import HttpRefusal, say


class Waiting:
    """A request before the model."""

    def __init__(self, arrays: list[Array], future: asyncio.Future[dict[str, Array]]) -> None:
        self.arrays, self.future = arrays, future
        self.rows = arrays[0].shape[0] if arrays and arrays[0].ndim else 1
        self.like = [array.shape[1:] for array in arrays]


class Queue:
    """The requests before the model, in the order in which they came."""

    def __init__(self, settings: argparse.Namespace, manifest: dict[str, Any], figures: Figures):
        self.settings, self.figures = settings, figures
        self.inputs, self.outputs = specs(manifest["inputs"]), specs(manifest["outputs"])
        self.together = together(manifest)
        self.most_rows = settings.max_batch or best_batch(manifest) if self.together else 1
        self.waiting: deque[Waiting] = deque()
        self.more = asyncio.Event()
        self.thread = ThreadPoolExecutor(1)
        self.model: Callable[..., dict[str, Any]] | None = None

    def load(self) -> None:
        """In the model's thread, like every call: some runtimes keep settings for each thread."""
        from load import load  # type: ignore[import-not-found]  # of the artefact folder

        model = load(self.settings.folder, threads=self.settings.threads)
        shapes = [spec.shape[1:] if self.together else spec.shape for spec in self.inputs]
        if not any(None in shape for shape in shapes):  # else no input is known to be sound
            for lead in {(1,), (self.most_rows,)} if self.together else {()}:
                zeros = (
                    np.zeros((*lead, *s), i.dtype) for s, i in zip(shapes, self.inputs, strict=True)
                )
                with suppress(Exception):  # the first calls are slow; zeros may not be sound either
                    model(*zeros)
        self.model = model

    async def ask(self, arrays: list[Array]) -> dict[str, Array]:
        """What the model says to these arrays."""
        if self.model is None:
            raise HttpRefusal(503, "the model is still being loaded")
        if len(self.waiting) >= self.settings.queue:
            raise HttpRefusal(503, f"{len(self.waiting)} requests are waiting already")
        if self.together and len({array.shape[0] for array in arrays}) > 1:
            raise HttpRefusal(400, "the first dimension, the batch, differs between the inputs")
        loop = asyncio.get_running_loop()
        waiting = Waiting(arrays, loop.create_future())
        late = HttpRefusal(
            503, f"no result within {self.settings.timeout_s:g} s: the server is busy"
        )
        timer = loop.call_later(self.settings.timeout_s, settle, waiting.future, late)
        self.waiting.append(waiting)
        self.more.set()
        try:
            return await waiting.future
        finally:
            timer.cancel()

    async def run(self) -> None:
        """Give the model one batch after the other, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self.more.wait()
            if self.settings.window_ms > 0 and self.together:
                await self.window()
            group = self.take()
            if group:
                results = await loop.run_in_executor(self.thread, self.call, group)
                for waiting, result in zip(group, results, strict=True):
                    settle(waiting.future, result)

    async def window(self) -> None:
        """Wait until a batch is full, and no longer than the window."""
        end = time.monotonic() + self.settings.window_ms / 1000
        while sum(item.rows for item in self.waiting) < self.most_rows:
            left = end - time.monotonic()
            if left <= 0:
                break
            self.more.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.more.wait(), left)

    def take(self) -> list[Waiting]:
        """The oldest request, and those of the same shape that fit beside it."""
        group: list[Waiting] = []
        kept: deque[Waiting] = deque()
        rows = 0
        for item in self.waiting:
            if item.future.done():  # its time is over
                continue
            beside = self.together and group and item.like == group[0].like
            if not group or (beside and rows + item.rows <= self.most_rows):
                group.append(item)
                rows += item.rows
            else:
                kept.append(item)
        self.waiting = kept
        if kept:
            self.more.set()  # the window may have cleared it
        else:
            self.more.clear()
        return group

    def call(self, group: list[Waiting]) -> list[Any]:
        """A result or an exception for each of them; runs in the model's thread."""
        try:
            return self.call_together(group)
        except Exception as error:
            if len(group) > 1:  # whose fault it is shows when each runs alone
                return [result for item in group for result in self.call([item])]
            say(f"the model failed: {error!r}")
            return [HttpRefusal(500, f"the model failed: {type(error).__name__}: {error}")]

    def call_together(self, group: list[Waiting]) -> list[Any]:
        assert self.model is not None
        columns = zip(*(item.arrays for item in group), strict=True)
        arrays = [np.concatenate(c) for c in columns] if len(group) > 1 else group[0].arrays
        began = time.perf_counter()
        found = {name: np.asarray(value) for name, value in self.model(*arrays).items()}
        self.figures.model.add(time.perf_counter() - began)
        rows = sum(item.rows for item in group)
        self.figures.rows.add(rows)
        # A runtime may write its next results where these stand.
        found = {name: a if a.flags.owndata else a.copy() for name, a in found.items()}
        if len(group) == 1:
            return [found]
        if any(array.shape[:1] != (rows,) for array in found.values()):
            raise ValueError("the first dimension of an output is not the batch")
        ends = itertools.accumulate(item.rows for item in group)
        return [
            {name: array[end - item.rows : end] for name, array in found.items()}
            for item, end in zip(group, ends, strict=True)
        ]


def together(manifest: dict[str, Any]) -> bool:
    """Whether rows of several requests can be one batch: it is the first dimension of each tensor,
    of any size, and no row's result depends on the others.
    """
    axes = [*manifest["input_axes"], *manifest["output_axes"]]
    free = manifest["batch_dynamic"] and not manifest.get("batch_matters")
    return bool(free) and set(axes) == {0}


def best_batch(manifest: dict[str, Any]) -> int:
    """That with which most rows per second were measured."""
    points = (manifest.get("measured") or {}).get("batches") or ()
    best = max(points, key=lambda point: float(point["samples_per_s"]), default=None)
    return int(best["batch"]) if best else max(map(int, manifest["batch_sizes"]), default=1)


def settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
