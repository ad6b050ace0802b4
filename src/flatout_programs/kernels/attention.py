"""Attention, forward, by torch's own scaled_dot_product_attention, over lengths."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import matmul, sizes
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice
from flatout_programs.kernels.timing import Clock, median_s

Size = tuple[int, int, int, int]
"""Batch, heads, length, width of a head."""
QUICK: tuple[Size, ...] = ((4, 16, 4096, 128),)
FULL: tuple[Size, ...] = tuple((max(1, 16384 // n), 16, n, 128) for n in (512, 1024, 4096, 16384))
CPU_QUICK: tuple[Size, ...] = ((1, 8, 512, 64),)
CPU_FULL: tuple[Size, ...] = ((4, 8, 256, 64), (2, 8, 1024, 64), (1, 8, 4096, 64))


def kernels(setup: Setup) -> list[CeilingKernel]:
    """bf16, fp16 and fp32 on each device; fp32 and bf16 on the CPU."""
    family = []
    for device in (*setup.accelerators, "cpu"):
        cpu = device == "cpu"
        formats = ("fp32", "bf16") if cpu else matmul.formats(setup.torch, device)
        prefix = "attention-cpu" if cpu else "attention"
        for name in ("bf16", "fp16", "fp32"):
            if name in formats:
                curve = partial(attentions, setup, device, name)
                title = f"attention, {name}, forward"
                family.append(CeilingKernel(f"{prefix}-{name}", title, device, "TFLOP/s", curve))
    return family


def attentions(setup: Setup, device: str, name: str, time_slice: Slice) -> Iterator[Point]:
    """TFLOP/s over lengths, without a mask, so all counted work is done."""
    cpu = device == "cpu"
    shapes = (CPU_QUICK if setup.quick else CPU_FULL) if cpu else (QUICK if setup.quick else FULL)
    clock = Clock(setup.torch, device)

    def measure(size: Size, budget_s: float) -> tuple[str, float, float]:
        seconds = median_s(clock, attention(setup, device, name, size), budget_s)
        return "x".join(map(str, size)), _flop(size) / seconds / 1e12, seconds

    with setup.torch.no_grad():
        yield from sizes.over(shapes, _flop, measure, time_slice)


def attention(setup: Setup, device: str, name: str, size: Size) -> Any:
    """An action over rotating sets of queries, keys and values."""
    torch = setup.torch
    dtype = getattr(torch, matmul.DTYPES[name])
    batch, heads, length, width = size

    def make() -> Any:
        return [setup.random(size, dtype, device) for _ in range(3)]

    operands = setup.sets(device, make, 3 * batch * heads * length * width * dtype.itemsize)
    attend = torch.nn.functional.scaled_dot_product_attention

    def act(call: int) -> None:
        attend(*operands[call % len(operands)])

    return act


def _flop(size: Size) -> float:
    """Two products of length x length x width."""
    batch, heads, length, width = size
    return 4.0 * batch * heads * length * length * width
