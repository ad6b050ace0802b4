"""GPM through a fake of NVML, with pynvml's own structures: two samples, freed in the end."""

from __future__ import annotations

import time

import pynvml
import pytest

from flatout.probing.nvml import gpm
from flatout.probing.nvml.gpm import UNKNOWN, GpmSampler, GpmShares
from flatout.probing.nvml.live import NvidiaSampler
from flatout.probing.nvml.questions import Questions
from probing.nvml.fake import Nvml, consumer
from probing.nvml.fake_gpm import GpmNvml


def test_two_samples_of_each_gpu() -> None:
    library = GpmNvml(2)
    library.value = 80.0
    sampler = GpmSampler(Questions(library))
    assert [sampler.shares(gpu, gpu, 100.0) for gpu in range(3)] == [UNKNOWN] * 3
    for now_s in (101.0, 102.0, 103.0):
        shares = [sampler.shares(gpu, gpu, now_s) for gpu in range(3)]
        assert shares == [GpmShares(0.80, 0.125), GpmShares(0.81, 0.125), UNKNOWN]
    assert len(library.samples) == 4
    assert library.calls.count("nvmlGpmQueryDeviceSupport") == 3  # once each
    sampler.close()
    assert library.samples == {}
    assert sampler.shares(0, 0, 104.0) == UNKNOWN  # it begins again
    assert sampler.shares(0, 0, 105.0).sm_active == 0.8
    sampler.close()
    assert library.samples == {}


def test_counters_are_no_finer() -> None:
    library = GpmNvml()
    sampler = GpmSampler(Questions(library))
    library.value = 10.0
    sampler.shares(0, 0, 100.0)
    assert sampler.shares(0, 0, 100.05) == UNKNOWN
    assert sampler.shares(0, 0, 100.2).sm_active == 0.1
    library.value = 20.0
    assert sampler.shares(0, 0, 100.25).sm_active == 0.1
    assert library.taken == 2


@pytest.mark.parametrize(
    ("value", "status", "expected"),
    [
        (100.4, 0, GpmShares(1.0, 0.125)),
        (-0.1, 0, GpmShares(0.0, 0.125)),
        (float("nan"), 0, GpmShares(None, 0.125)),
        (50.0, 3, GpmShares(0.5, None)),
    ],
)
def test_values(value: float, status: int, expected: GpmShares) -> None:
    library = GpmNvml()
    library.value, library.status = value, status
    sampler = GpmSampler(Questions(library))
    sampler.shares(0, 0, 0.0)
    assert sampler.shares(0, 0, 1.0) == expected


def test_a_gpu_that_refuses_is_not_asked_again() -> None:
    library = GpmNvml(2)
    sampler = GpmSampler(Questions(library))
    for gpu in range(2):
        sampler.shares(gpu, gpu, 0.0)
    library.errors["nvmlGpmSampleGet"] = {0}
    assert sampler.shares(0, 0, 1.0) == UNKNOWN
    assert sampler.shares(1, 1, 1.0).sm_active == 0.01
    assert len(library.samples) == 2
    library.errors.clear()
    library.calls.clear()
    assert [sampler.shares(0, 0, now_s) for now_s in (2.0, 3.0)] == [UNKNOWN] * 2
    assert library.calls == []


@pytest.mark.parametrize("have", [0, 1])
def test_no_memory_for_samples(have: int) -> None:
    library = GpmNvml()
    library.errors["nvmlGpmSampleAlloc"] = {have}
    sampler = GpmSampler(Questions(library))
    assert [sampler.shares(0, 0, now_s) for now_s in (0.0, 1.0)] == [UNKNOWN] * 2
    assert library.samples == {}


def test_an_older_library_has_no_gpm() -> None:
    sampler = GpmSampler(Questions(Nvml([consumer()])))
    assert [sampler.shares(0, 0, now_s) for now_s in (0.0, 1.0)] == [UNKNOWN] * 2


def test_the_sampler_asks_only_while_it_is_wanted() -> None:
    library = GpmNvml()
    sampler = NvidiaSampler(Questions(library))
    library.value = 60.0

    def seen(now_s: float) -> list[tuple[float | None, float | None]]:
        return [(gpu.sm_active, gpu.tensor_active) for gpu in sampler.sample(now_s)]

    nothing = [(None, None)] * 2
    assert [seen(100.0), seen(101.0)] == [nothing] * 2
    assert not [call for call in library.calls if "Gpm" in call]
    sampler.gpm_wanted = True
    assert seen(102.0) == nothing
    assert seen(103.0) == [(0.6, 0.125), (None, None)]
    sampler.gpm_wanted = False
    assert seen(104.0) == nothing
    assert library.samples == {}
    sampler.gpm_wanted = True
    assert [seen(105.0), seen(106.0)] == [nothing, [(0.6, 0.125), (None, None)]]
    sampler.close()
    assert library.samples == {}


def test_the_numbers_are_nvmls() -> None:
    assert pynvml.NVML_GPM_METRIC_SM_UTIL == gpm.SM_UTIL
    assert pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL == gpm.ANY_TENSOR_UTIL
    assert pynvml.NVML_GPM_METRICS_GET_VERSION == gpm.METRICS_GET_VERSION


@pytest.mark.gpu
def test_real_gpu() -> None:
    pynvml.nvmlInit()
    try:
        sampler = NvidiaSampler(Questions(pynvml))
        sampler.gpm_wanted = True
        for now_s in (0.0, 1.0):
            for gpu in sampler.sample(now_s):
                for share in (gpu.sm_active, gpu.tensor_active):
                    assert share is None or 0 <= share <= 1
            time.sleep(0.2)
        sampler.close()
    finally:
        pynvml.nvmlShutdown()
