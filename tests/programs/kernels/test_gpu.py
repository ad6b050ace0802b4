"""Every family on a real CUDA device: all kernels run, and give what such a device can give."""

from __future__ import annotations

import importlib

import pytest
import torch

from flatout_programs import ceilings as program
from flatout_programs.kernels import matmul
from flatout_programs.kernels.kernel import Setup, Slice

pytestmark = pytest.mark.gpu


@pytest.fixture
def here() -> Setup:
    return Setup(torch, quick=True, accelerators=("cuda:0",))


@pytest.mark.parametrize("family", program.FAMILIES)
def test_every_kernel_runs(here: Setup, family: str) -> None:
    for kernel in importlib.import_module(f"flatout_programs.kernels.{family}").kernels(here):
        if kernel.device == "cpu":
            continue
        assert kernel.impossible == ""
        points = list(kernel.curve(Slice(0.3)))
        assert points, kernel.id
        assert all(value > 0 for _, value in points), kernel.id
        torch.cuda.empty_cache()


def test_a_better_format_is_faster(here: Setup) -> None:
    def best(name: str) -> float:
        return max(value for _, value in matmul.products(here, "cuda:0", name, Slice(1.0)))

    found = {name: best(name) for name in matmul.formats(torch, "cuda:0")}
    assert found["bf16"] > 2 * found["fp32"]
    assert found["fp32"] > 0.5 * found["fp64"]
    if "fp8" in found:
        assert found["fp8"] > 1.2 * found["bf16"]
