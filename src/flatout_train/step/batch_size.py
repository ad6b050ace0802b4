"""Find the largest batch size that fits, and the one with the highest throughput."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flatout_agent.limits import spare_memory
from flatout_agent.speedups import nests
from flatout_agent.speedups.memory_counters import peak_resident_bytes
from flatout_train.checkpoint import random_states
from flatout_train.errors import UsageError
from flatout_train.out_of_memory import empty_cache, is_out_of_memory, let_go

if TYPE_CHECKING:
    from flatout_train.step.train_step import TrainStep

REPEATS = 5
"""Timed runs per size, of which the median is taken."""
RUN_S = 0.02
"""Approximate duration of a run, in seconds: it has as many steps as fit."""
GAIN = 1.03
"""A size counts as faster from this ratio of rates on: less is noise."""
PATIENCE = 2
"""This many doublings in a row without a gain end the timing."""
HOST_SHARE = 0.7
"""The largest share of the host's available memory that a size may take."""

STATUS, RESET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class HostPeak:
    """`with HostPeak() as peak: ...`, then `peak.bytes`: peak resident bytes above the start.

    Linux counts the peak of every process and lets it be reset; on macOS it is never reset, so only
    what exceeds the process's earlier peak is seen. 0 on Windows.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._begin = 0

    def __enter__(self) -> HostPeak:
        _give_back()  # freed memory that is kept would hide new allocations
        try:
            RESET_PEAK.write_text("5")
        except OSError:  # another system, or a /proc that is read-only
            self._begin = _highest()
        else:
            self._begin = _from_status("VmRSS")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bytes = max(0, _highest() - self._begin)


@dataclass(frozen=True)
class BatchSize:
    """Result of `find_batch_size`; sizes are samples per call of the step."""

    largest: int
    """The largest size that fitted without a split, within the limits of `find_batch_size`."""
    fastest: int
    """The size with the highest rate."""
    samples_per_s: dict[int, float]
    """Samples per second for each size that was timed, ascending by size."""


def find_batch_size(
    step: TrainStep,
    make_batch: Callable[[int], Any],
    *,
    start: int = 1,
    limit: int | None = None,
) -> BatchSize:
    """The largest batch size that fits into memory, and the fastest, found by running real steps.

    `make_batch(n)` returns a batch of `n` samples as `step` takes it, on the step's device. From
    `start` on the size is doubled until a step (forward, backward, optimizer) does not fit, or
    `limit` is reached; bisection then finds the largest. Sizes are timed after a warm-up, as the
    median of several runs, until two doublings in a row gain less than 3 %. On the CPU the search
    ends there too, since its memory is exhausted only when the machine swaps. On every device it
    ends before a size that would take more than 70 % of the available host memory, extrapolated
    from the growth so far (not measured on Windows). Steps run as the step was built, but not as
    one CUDA graph; recompilation for new sizes is not timed.

    Nothing is left behind, even when `make_batch` or the model raises: weights, optimizer,
    scheduler, EMA, random states, histories and counters are restored (from copies in host
    memory), gradients are None, and allocated memory is freed.

    Batch normalisation over single vectors needs start=2: it cannot train on one sample.

    Raises UsageError for an invalid `start` or `limit`, within an accumulation group, and for a
    model of several ranks: search before it is wrapped. torch.OutOfMemoryError if not even one
    sample fits.
    """
    if start < 1 or (limit is not None and limit < start):
        raise UsageError(
            f"start={start} and limit={limit}: start must be at least 1, and limit at least start"
        )
    if step.pending:
        raise UsageError(
            f"the step is in the middle of an accumulation group ({step.pending} calls so far): "
            "call step.flush() first, or search before training"
        )
    if step._group.ranks is not None:
        raise UsageError(
            "several ranks share this model, and none can try a size by itself: search with the "
            "model on one device, before DistributedDataParallel or fully_shard wraps it"
        )
    with _without_trace(step):
        return _Search(step, make_batch, start, limit).run()


@contextlib.contextmanager
def _without_trace(step: TrainStep) -> Iterator[None]:
    """Within it `step` may be called; afterwards it and everything it holds are restored.

    Weights, buffers and the optimizer's state are copied to host memory. The first two are written
    back into the same tensors, the last is loaded as from a checkpoint; gradients end as None. No
    graph is captured.
    """
    snapshot = _Snapshot(step)
    try:
        step._graph_step = None
        yield
    finally:
        snapshot.restore()
        del snapshot
        gc.collect()
        empty_cache(step.device)


class _Snapshot:
    """The state of a step and its parts."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        state = step.state_dict()
        memo: dict[int, Any] = {}
        for tensor in nests.tensors(state):
            memo[id(tensor)] = _on_host(tensor)
        self._buffers = [
            (module._buffers, name, buffer, _on_host(buffer))
            for module in step.model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._state = copy.deepcopy(state, memo)
        parts = (step, step._group, step._passes, step._update, step._histories)
        self._fields = [(vars(part), _own(vars(part))) for part in parts]
        self._random = random_states.capture()

    @torch.no_grad()
    def restore(self) -> None:
        step = self._step
        step._update.look(wait=True)  # values in flight belong to the steps that are undone
        step.load_state_dict(self._state)
        for holder, name, buffer, content in self._buffers:
            holder[name] = buffer.copy_(content)
        for fields, before in self._fields:
            fields.update(before)
        random_states.restore(self._random)


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _own(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields; lists, dicts and deques as shallow copies."""
    return {
        name: copy.copy(value) if isinstance(value, list | dict | deque) else value
        for name, value in fields.items()
    }


class _Search:
    """One search."""

    def __init__(
        self, step: TrainStep, make_batch: Callable[[int], Any], start: int, limit: int | None
    ) -> None:
        self.step, self.make_batch = step, make_batch
        self.start, self.limit = start, sys.maxsize if limit is None else limit
        self.rates: dict[int, float] = {}
        self.without_gain = 0
        self.failure: Exception | None = None
        self.peaks: list[int] = []
        """Host memory at the peak of the last sizes, in bytes."""

    def run(self) -> BatchSize:
        largest, too_large = self._grow()
        while too_large is not None and too_large - largest > 1:
            middle = (largest + too_large) // 2
            if self._fits(middle):
                largest = middle
            else:
                too_large = middle
        if not largest:
            raise torch.OutOfMemoryError(
                f"not even one sample fits into the memory of {self.step.device} beside the model; "
                'recompute=True, precision="bf16" or smaller samples need less'
            ) from self.failure
        if largest not in self.rates and self.without_gain < PATIENCE:
            self._time(largest)
        fastest = max(self.rates, key=self.rates.__getitem__)
        return BatchSize(largest, fastest, dict(sorted(self.rates.items())))

    def _grow(self) -> tuple[int, int | None]:
        """The largest doubled size that fits (0 if none does), and the one that does not
        (or None).
        """
        largest, size = 0, self.start
        while self._fits(size):
            largest = size
            if self.without_gain < PATIENCE:
                self._time(size)
            done = self.without_gain >= PATIENCE and self.step.device.type == "cpu"
            if size == self.limit or done or self._host_would_fill():
                return largest, None
            size = min(2 * size, self.limit)
        return largest, size

    def _fits(self, size: int) -> bool:
        """Whether a whole step of this size succeeds."""
        failure: Exception | None = None
        with HostPeak() as peak:
            try:
                batch = self.make_batch(size)
                with self.step._fit.unsplit():
                    self.step(batch)
                    self.step.flush()
                self._wait()
            except Exception as error:
                if not is_out_of_memory(error, self.step.device):
                    raise
                failure = error
        self.peaks = [*self.peaks[-1:], peak.bytes]
        batch = None
        if failure is not None:
            let_go(failure, self.step.device)
            self.failure = failure
        return failure is None

    def _time(self, size: int) -> None:
        """Measure the rate of a size that fits."""
        batch = self.make_batch(size)
        with self.step._fit.unsplit():
            once = self._seconds(batch, 1)
            calls = max(1, min(100, int(RUN_S / max(once, 1e-9))))
            seconds = median(self._seconds(batch, calls) for _ in range(REPEATS)) / calls
            self.step.flush()
        rate = size / seconds
        best = max(self.rates.values(), default=0.0)
        self.rates[size] = rate
        self.without_gain = 0 if rate > GAIN * best else self.without_gain + 1

    def _seconds(self, batch: Any, calls: int) -> float:
        self._wait()
        begin = time.perf_counter()
        for _ in range(calls):
            self.step(batch)
        self._wait()
        return time.perf_counter() - begin

    def _wait(self) -> None:
        device = self.step.device
        if device.type == "mps":  # there is only one, and synchronize takes no argument
            torch.mps.synchronize()
        elif device.type != "cpu":
            torch.get_device_module(device).synchronize(device)

    def _host_would_fill(self) -> bool:
        """Whether twice the size may take more host memory than is available."""
        available = spare_memory()
        now = self.peaks[-1]
        grown = now - self.peaks[0] if len(self.peaks) > 1 else now
        return available is not None and now + 2 * max(grown, 0) >= HOST_SHARE * available


def _give_back() -> None:
    """Collect garbage and return the C library's unused memory to the system."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
        if trim is not None:
            trim(0)


def _highest() -> int:
    """The peak resident bytes of this process, or 0 if unknown."""
    if sys.platform == "linux":
        return _from_status("VmHWM")
    return peak_resident_bytes() or 0


def _from_status(name: str) -> int:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    counts = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(counts[0]) * 1024 if counts else 0
