"""The fake of NVML with GPM: what it was asked for, in pynvml's own structures."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from probing.nvml.fake import Nvml, RefusalError, consumer, server


class GpmNvml(Nvml):
    """H100s: each sample holds how often it was taken on its GPU, and shares follow from that."""

    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t  # noqa: N815

    def __init__(self, gpus: int = 1, **options: Any) -> None:
        h100 = [server(index, "NVIDIA H100 80GB HBM3", 0x233010DE, 18) for index in range(gpus)]
        super().__init__([*h100, consumer()], **options)
        self.samples: dict[int, tuple[Any, int, int]] = {}
        """By address: itself, its GPU, its number."""
        self.taken = 0
        self.errors: dict[str, set[int]] = {}
        """By question: GPUs that refuse it."""
        self.value, self.status = 0.0, 0

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:  # noqa: N802
        self.calls.append("nvmlGpmQueryDeviceSupport")
        answer = pynvml.c_nvmlGpmSupport_t()
        answer.isSupportedDevice = handle < len(self.gpus) - 1
        return answer

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        self.calls.append("nvmlGpmSampleAlloc")
        if len(self.samples) in self.errors.get("nvmlGpmSampleAlloc", ()):
            raise RefusalError(20, "Insufficient Memory")
        memory = ctypes.create_string_buffer(8)
        sample = ctypes.cast(memory, pynvml.c_nvmlGpmSample_t)
        self.samples[ctypes.addressof(memory)] = memory, -1, 0
        return sample

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        del self.samples[address(sample)]

    def nvmlGpmSampleGet(self, handle: int, sample: Any) -> Any:  # noqa: N802
        self.calls.append("nvmlGpmSampleGet")
        if handle in self.errors.get("nvmlGpmSampleGet", ()):
            raise RefusalError(4, "Insufficient Permissions")
        self.taken += 1
        memory, _, _ = self.samples[address(sample)]
        self.samples[address(sample)] = memory, handle, self.taken
        return sample

    def nvmlGpmMetricsGet(self, question: Any) -> Any:  # noqa: N802
        assert (question.version, question.numMetrics) == (pynvml.NVML_GPM_METRICS_GET_VERSION, 2)
        _, gpu, earlier = self.samples[address(question.sample1)]
        _, same, later = self.samples[address(question.sample2)]
        assert gpu == same
        assert 0 < earlier < later
        names = [question.metrics[place].metricId for place in range(2)]
        assert names == [pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL]
        question.metrics[0].value = self.value + gpu
        question.metrics[1].value = 12.5
        question.metrics[1].nvmlReturn = self.status
        return question


def address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
