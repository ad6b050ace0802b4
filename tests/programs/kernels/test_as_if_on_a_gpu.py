"""The families for accelerators where there is none: torch's CPU in the clothes of two GPUs.

What is checked is that each calls torch as it should; the figures mean nothing here.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout_programs import ceilings as program
from flatout_programs.kernels import (
    attention,
    convolution,
    exchange,
    launch,
    matmul,
    memory,
    transfer,
)
from flatout_programs.kernels.kernel import Setup, Slice

CARDS = ("cuda:0", "cuda:1")
DEVICES = {*CARDS, "cpu"}


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1000


class Cuda:
    """The part of torch.cuda that the kernels use."""

    Event = Event

    def get_device_properties(self, device: str) -> Any:
        assert device in CARDS
        return SimpleNamespace(L2_cache_size=2**16, name="NVIDIA H200", total_memory=2**30)

    def get_device_capability(self, device: str) -> tuple[int, int]:
        assert device in CARDS
        return (9, 0)

    def mem_get_info(self, device: str) -> tuple[int, int]:
        assert device in CARDS
        return 2**33, 2**34

    def synchronize(self, device: str | None = None) -> None:
        assert device in (None, *CARDS)

    @contextlib.contextmanager
    def device(self, device: str) -> Iterator[None]:
        assert device in CARDS
        yield


class AsIfOnGpu:
    """The torch module; devices named cuda:0 and cuda:1 are the CPU, and none else is known."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        self.version = SimpleNamespace(hip=None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _made(self, name: str, *args: Any, device: str = "cpu", **kwargs: Any) -> Any:
        assert device in DEVICES
        return getattr(torch, name)(*args, **kwargs)

    def randn(self, *args: Any, **kwargs: Any) -> Any:
        return self._made("randn", *args, **kwargs)

    def empty(self, *args: Any, **kwargs: Any) -> Any:
        return self._made("empty", *args, **kwargs)

    def ones(self, *args: Any, **kwargs: Any) -> Any:
        return self._made("ones", *args, **kwargs)

    def empty_like(self, *args: Any, **kwargs: Any) -> Any:
        return self._made("empty_like", *args, **kwargs)

    def _scaled_mm(self, one: Any, two: Any, a: Any, b: Any, **kwargs: Any) -> Any:
        assert kwargs == {"out_dtype": torch.bfloat16, "use_fast_accum": True}
        assert one.dtype == two.dtype == torch.float8_e4m3fn
        assert two.stride() == (1, two.shape[0])  # by columns
        assert a.dtype == torch.float32
        return torch.mm(one.float(), two.float())


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda values: values)
    monkeypatch.setattr(matmul, "QUICK", ((64, 64, 64), (128, 64, 96)))
    monkeypatch.setattr(convolution, "QUICK", ((2, 16, 14),))
    monkeypatch.setattr(attention, "QUICK", ((1, 2, 32, 16),))
    monkeypatch.setattr(memory, "QUICK", (2**16, 2**18))
    monkeypatch.setattr(transfer, "QUICK", (2**16,))
    monkeypatch.setattr(exchange, "COPIED", 2**16)
    monkeypatch.setattr(launch, "ROUND", 10)
    return Setup(AsIfOnGpu(), quick=True, accelerators=CARDS, cores=1)


OWN_PROCESSES_OR_NONE = ("jpeg", "ranks")
FAMILIES = [name for name in program.FAMILIES if name not in OWN_PROCESSES_OR_NONE]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kernel_calls_torch_as_it_should(here: Setup, family: str) -> None:
    kernels = importlib.import_module(f"flatout_programs.kernels.{family}").kernels(here)
    found = [one for one in kernels if one.device != "cpu"]
    assert {one.device for one in found} <= set(CARDS)
    for kernel in found:
        assert kernel.impossible == ""
        points = list(kernel.curve(Slice(0.02)))
        assert points, kernel.id
        assert all(value > 0 for _, value in points), kernel.id


def test_the_ids_of_a_hopper_gpu(here: Setup) -> None:
    found = {
        one.id
        for name in FAMILIES
        for one in importlib.import_module(f"flatout_programs.kernels.{name}").kernels(here)
        if one.device == "cuda:0"
    }
    assert found == {
        *(f"matmul-{name}" for name in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")),
        *(f"conv-{way}-{name}" for way in ("nchw", "nhwc") for name in ("fp32", "fp16", "bf16")),
        *(f"attention-{name}" for name in ("fp32", "fp16", "bf16")),
        *("copy-device", "triad-device", "launch-latency", "launch-rate"),
        *(f"copy-host-to-device-{kind}" for kind in ("pinned", "pageable")),
        *(f"copy-device-to-host-{kind}" for kind in ("pinned", "pageable")),
        "copy-device-to-device",
    }


def test_what_is_measured_first_is_there(here: Setup) -> None:
    found = {
        one.id
        for name in program.FAMILIES
        for one in importlib.import_module(f"flatout_programs.kernels.{name}").kernels(here)
    }
    assert set(program.BY_VALUE) <= found


@pytest.mark.parametrize(
    ("capability", "formats"),
    [
        ((7, 5), {"fp64", "fp32", "fp16"}),
        ((8, 0), {"fp64", "fp32", "fp16", "tf32", "bf16"}),
        ((8, 9), {"fp64", "fp32", "fp16", "tf32", "bf16", "fp8"}),
    ],
)
def test_formats_by_generation(
    here: Setup, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], formats: set[str]
) -> None:
    monkeypatch.setattr(Cuda, "get_device_capability", lambda self, device: capability)
    assert set(matmul.formats(here.torch, "cuda:0")) == formats
