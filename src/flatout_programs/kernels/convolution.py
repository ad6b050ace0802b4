"""Convolutions by number format, with the channels before (NCHW) and behind (NHWC) the pixels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import matmul, sizes
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice
from flatout_programs.kernels.timing import Clock, median_s

Size = tuple[int, int, int]
"""Pictures, channels, pixels along an edge; the filter is 3x3, with as many output channels."""
QUICK: tuple[Size, ...] = ((64, 256, 28),)
FULL: tuple[Size, ...] = ((16, 64, 56), (32, 128, 28), (64, 256, 28), (128, 256, 56))
CPU_QUICK: tuple[Size, ...] = ((8, 64, 56),)
CPU_FULL: tuple[Size, ...] = ((8, 64, 56), (16, 128, 28), (16, 256, 28))
LAYOUTS = ("nchw", "nhwc")


def kernels(setup: Setup) -> list[CeilingKernel]:
    """fp32 (as torch comes: TF32 where the GPU has it), bf16 and fp16."""
    family = []
    for device in (*setup.accelerators, "cpu"):
        cpu = device == "cpu"
        formats = ("fp32", "bf16") if cpu else matmul.formats(setup.torch, device)
        prefix = "conv-cpu" if cpu else "conv"
        for name in ("bf16", "fp16", "fp32"):
            for layout in LAYOUTS if name in formats else ():
                curve = partial(convolutions, setup, device, name, layout)
                title = f"convolution 3x3, {name}, {layout.upper()}"
                kernel_id = f"{prefix}-{layout}-{name}"
                family.append(CeilingKernel(kernel_id, title, device, "TFLOP/s", curve))
    return family


def convolutions(
    setup: Setup, device: str, name: str, layout: str, time_slice: Slice
) -> Iterator[Point]:
    """TFLOP/s over sizes, cuDNN choosing its algorithm by trying."""
    torch = setup.torch
    cpu = device == "cpu"
    shapes = (CPU_QUICK if setup.quick else CPU_FULL) if cpu else (QUICK if setup.quick else FULL)
    clock = Clock(torch, device)

    def measure(size: Size, budget_s: float) -> tuple[str, float, float]:
        seconds = median_s(clock, convolution(setup, device, name, layout, size), budget_s)
        count, channels, edge = size
        words = f"{count}x{channels}x{edge}x{edge} 3x3"
        return words, _flop(size) / seconds / 1e12, seconds

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with torch.no_grad():
            yield from sizes.over(shapes, _flop, measure, time_slice)
    finally:
        torch.backends.cudnn.benchmark = before


def convolution(setup: Setup, device: str, name: str, layout: str, size: Size) -> Any:
    """An action that convolves rotating sets of pictures."""
    torch = setup.torch
    dtype = getattr(torch, matmul.DTYPES[name])
    place = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    count, channels, edge = size
    conv2d = torch.nn.functional.conv2d

    def make() -> Any:
        return setup.random((count, channels, edge, edge), dtype, device).to(memory_format=place)

    pictures = setup.sets(device, make, count * channels * edge * edge * dtype.itemsize)
    filters = setup.random((channels, channels, 3, 3), dtype, device).to(memory_format=place)

    def act(call: int) -> None:
        conv2d(pictures[call % len(pictures)], filters, padding=1)

    return act


def _flop(size: Size) -> float:
    count, channels, edge = size
    return 2.0 * count * channels * channels * 9 * edge * edge
