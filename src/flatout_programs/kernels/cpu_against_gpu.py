"""The same training step on the CPU and on a device: the speed-up by batch size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import stopwatch
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice
from flatout_programs.kernels.timing import Clock, median_s

BATCHES_QUICK = (1, 16)
BATCHES = (1, 4, 16, 64)
LENGTH, WIDTH, HEADS = 128, 512, 8


def kernels(setup: Setup) -> list[CeilingKernel]:
    """On the first device; nothing without one."""
    return [
        CeilingKernel(
            "cpu-against-gpu",
            "one training step of a transformer layer: CPU time / device time",
            device,
            "x",
            partial(ratios, setup, device),
            2.0,
            note="float32 as torch comes",
        )
        for device in setup.accelerators[:1]
    ]


def ratios(setup: Setup, device: str, time_slice: Slice) -> Iterator[Point]:
    """How many times faster the device is, by batch size."""
    batches = BATCHES_QUICK if setup.quick else BATCHES
    for index, batch in enumerate(batches):
        budget_s = max(time_slice.remaining_s() / (len(batches) - index), 0.1)
        cpu, gpu = (
            median_s(Clock(setup.torch, place), _prepared(setup, place, batch), budget_s * share)
            for place, share in (("cpu", 0.7), (device, 0.3))
        )
        yield f"batch {batch} of {LENGTH}x{WIDTH}", cpu / gpu


def _prepared(setup: Setup, device: str, batch: int) -> Any:
    with stopwatch.preparing():
        return step(setup, device, batch)


def step(setup: Setup, device: str, batch: int) -> Any:
    """An action: forward, backward and the optimizer, of one encoder layer."""
    torch = setup.torch
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
    inputs = setup.random((batch, LENGTH, WIDTH), torch.float32, device)

    def act(_: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        layer(inputs).square().mean().backward()
        optimizer.step()

    return act
