"""How much of a GPU is active while a kernel runs (GPM), on NVIDIA's H100 and newer.

Counters are read into a sample, and NVML computes the shares from two samples. They are no finer
than 100 ms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from flatout.probing.nvml.questions import Questions

SM_UTIL, ANY_TENSOR_UTIL = 2, 5
METRICS_GET_VERSION = 1
LEAST_S = 0.1


@dataclass(frozen=True)
class GpmShares:
    """Means since the last sample, or None if unsupported, refused or not known yet."""

    sm_active: float | None = None
    """Share of the multiprocessors that are active, 0 to 1."""
    tensor_active: float | None = None
    """Share of the time that the tensor cores are active, 0 to 1."""


UNKNOWN = GpmShares()


class GpmSampler:
    """Polls GPUs; a GPU that refuses anything is not asked again."""

    def __init__(self, ask: Questions) -> None:
        self._library = ask.library
        self._off: set[int] = set()
        self._pairs: dict[int, _Pair] = {}

    def shares(self, index: int, handle: Any, now_s: float) -> GpmShares:
        """The shares of the GPU with this index; `now_s` is of a clock that only goes forward."""
        if index in self._off:
            return UNKNOWN
        try:
            if index not in self._pairs:
                if not self._library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                    self._off.add(index)
                    return UNKNOWN
                self._pairs[index] = _Pair(self._library)
            return self._pairs[index].shares(handle, now_s)
        except Exception:  # NVMLError; no such function in an older library
            self._off.add(index)
            self._free(index)
            return UNKNOWN

    def close(self) -> None:
        """Free all samples; the sampler may be used again afterwards."""
        for index in list(self._pairs):
            self._free(index)

    def _free(self, index: int) -> None:
        pair = self._pairs.pop(index, None)
        if pair is not None:
            pair.free()


class _Pair:
    """The two samples of one GPU; each new one overwrites the older."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._samples: list[Any] = []
        self._taken_s: float | None = None
        self._shares = UNKNOWN
        try:
            for _ in range(2):
                self._samples.append(library.nvmlGpmSampleAlloc())
        except Exception:
            self.free()
            raise

    def free(self) -> None:
        samples, self._samples = self._samples, []
        for sample in samples:
            try:
                self._library.nvmlGpmSampleFree(sample)
            except Exception:  # a lost GPU has nothing to free
                continue

    def shares(self, handle: Any, now_s: float) -> GpmShares:
        if self._taken_s is not None and now_s - self._taken_s < LEAST_S:
            return self._shares
        older, newer = self._samples
        self._samples = [newer, older]
        self._library.nvmlGpmSampleGet(handle, older)
        first, self._taken_s = self._taken_s is None, now_s
        if not first:
            question = self._library.c_nvmlGpmMetricsGet_t()
            question.version = METRICS_GET_VERSION
            question.numMetrics = 2
            question.sample1, question.sample2 = newer, older  # `older` now holds the latest
            question.metrics[0].metricId = SM_UTIL
            question.metrics[1].metricId = ANY_TENSOR_UTIL
            self._library.nvmlGpmMetricsGet(question)
            self._shares = GpmShares(_share(question.metrics[0]), _share(question.metrics[1]))
        return self._shares


def _share(metric: Any) -> float | None:
    if metric.nvmlReturn != 0 or not math.isfinite(metric.value):
        return None
    return float(min(1.0, max(0.0, metric.value / 100)))
