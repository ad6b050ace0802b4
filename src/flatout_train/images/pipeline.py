"""Batches of pictures in flight: read by threads, finished on the device while it computes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from flatout_train.images.finishing import Finisher, ReadBatch
from flatout_train.images.reading import Item, Reader
from flatout_train.loader.copying import SideStream
from flatout_train.loader.sampling import Request

TOGETHER = 8
"""Most pictures per task of a thread: submitting a task costs as much as a small picture."""

Batch = tuple[Tensor, Tensor]
Work = Callable[[], Batch | None]


class SideThread:
    """In a separate thread and on a side stream, concurrently with the training step."""

    def __init__(self, device: torch.device) -> None:
        self._side = SideStream(device)
        self._thread = ThreadPoolExecutor(1, "flatout-images")

    def start(self, work: Work) -> Future[tuple[Batch | None, Any]]:
        return self._thread.submit(self._side.run, work)

    def take(self, started: Future[tuple[Batch | None, Any]]) -> Batch | None:
        batch, event = started.result()
        stream = self._side.join(event)
        for tensor in batch or ():
            tensor.record_stream(stream)  # its memory belongs to the side stream
        return batch

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


class Pipeline:
    """Reads and finishes batches, `ahead` of them ahead of time."""

    def __init__(self, reader: Reader, finisher: Finisher, workers: int, ahead: int) -> None:
        self.reader, self.finisher = reader, finisher
        self._ahead = ahead
        self._workers = workers
        self._pool = _pool(workers) if workers else None
        cuda = finisher.device.type == "cuda"
        self._pinned = cuda
        self._lane = SideThread(finisher.device) if cuda and ahead else None
        """Where batches are finished; None: in the program's own thread, when they are needed."""

    def run(self, requests: Iterable[Request]) -> Iterator[tuple[Batch, int]]:
        """Batches with the position in the epoch after each; empty batches are skipped."""
        coming = iter(requests)
        under_way: deque[tuple[Any, list[Future[None]], int]] = deque()
        try:
            while True:
                while len(under_way) <= self._ahead and (request := next(coming, None)) is not None:
                    under_way.append(self._start(request))
                if not under_way:
                    return
                started, _, end = under_way.popleft()
                batch = started() if self._lane is None else self._lane.take(started)
                if batch is not None:
                    yield (self.finisher.last(batch[0]), batch[1]), end
        finally:
            for _, futures, _ in under_way:
                for future in futures:
                    future.cancel()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._lane is not None:
            self._lane.close()

    def _start(self, request: Request) -> tuple[Any, list[Future[None]], int]:
        indices = [int(index) for index in request.indices]
        count = len(indices)
        draws = self.reader.cuts.draw(count, request.seed)
        size = self.reader.cuts.size
        slots = torch.empty(count, size, size, 3, dtype=torch.uint8, pin_memory=self._pinned)
        read = ReadBatch([None] * count, slots, draws)
        rows = draws.tolist()
        if self._pool is None:

            def work() -> Batch | None:
                self._read(indices, rows, read, range(count))
                return self.finisher.finish(read)

            return self._finished(work), [], request.end
        share = max(1, min(TOGETHER, count // (2 * self._workers)))
        futures = [
            self._pool.submit(
                self._read, indices, rows, read, range(begin, min(count, begin + share))
            )
            for begin in range(0, count, share)
        ]

        def finish() -> Batch | None:
            for future in futures:
                future.result()
            return self.finisher.finish(read)

        return self._finished(finish), futures, request.end

    def _finished(self, work: Work) -> Any:
        return work if self._lane is None else self._lane.start(work)

    def _read(
        self, indices: Sequence[int], draws: list[list[float]], read: ReadBatch, places: range
    ) -> None:
        items: list[Item | None] = read.items
        for place in places:
            items[place] = self.reader.read(indices[place], draws[place], read.slots[place])


def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "flatout-pictures", _alone, (torch.get_num_threads(),))


def _alone(threads: int) -> None:
    """Make a worker single-threaded: a pool of threads for each would oversubscribe the cores.

    In torch, threads that start later inherit the number set last, in any thread. So `threads`, the
    program's own number, is set again in a thread that does nothing else. A thread inherits the
    number when it first needs it: here before its own is set, not after.
    """
    torch.get_num_threads()
    torch.set_num_threads(1)
    last = threading.Thread(target=torch.set_num_threads, args=(threads,))
    last.start()
    last.join()
