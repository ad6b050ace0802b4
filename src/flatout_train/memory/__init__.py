"""The device's memory: usage by category, freeing it, limiting it, its history, its leaks.

    import flatout

    print(flatout.memory.report(step=step))
    with flatout.memory.history("memory"):      # memory.pickle and memory.html
        for _ in range(3):
            step(batch)

Works for CUDA and ROCm, XPU, MPS and the CPU, with the counters of each; a figure that a device
type does not provide is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout_train.errors import UsageError
from flatout_train.memory import counters as memory_counters
from flatout_train.memory import history_files as memory_history
from flatout_train.memory import reporting as memory_report
from flatout_train.memory.growth import Grown, Growth, LeakCheck
from flatout_train.memory.history_files import History
from flatout_train.memory.reporting import Report

__all__ = [
    "Grown",
    "Growth",
    "History",
    "LeakCheck",
    "Report",
    "free",
    "history",
    "leaks",
    "limit",
    "report",
]

Device = torch.device | str | None


def report(
    device: Device = None,
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    step: Any = None,
) -> Report:
    """How the memory of `device` is used now, in bytes; `print()` shows it as a table.

    Args:
        device: if None, the device of the model or step, or without them `flatout.device()`.
        model, optimizer: break the memory down into parameters, gradients, optimizer state, buffers
            and the rest. A storage that several tensors share counts once.
        step: a `flatout.train_step`, instead of both; its averaged weights are counted too.

    Raises:
        UsageError: for a device type without memory counters.

    On the CPU, `allocated` is the resident memory of this process, `free` and `total` are those of
    the container if it has a limit, else of the machine. Does not wait for the device.
    """
    if step is not None:
        model = model if model is not None else step.model
        optimizer = optimizer if optimizer is not None else step.optimizer
    average = getattr(step, "ema", None)
    return memory_report.make(_device(device, model), model, optimizer, average)


def free(device: Device = None) -> int | None:
    """Collect garbage and return unused memory to the device.

    Args:
        device: None is `flatout.device()`.

    Returns:
        Bytes returned, 0 or more, or None if they cannot be counted (the CPU outside Linux).

    Takes 0.1 s or more, and the next steps are slower, since they must allocate memory from the
    device again: call it between two phases of a program, never in each step. Tensors in use are
    not touched.
    """
    target = _device(device)
    before = _held(target)
    memory_counters.give_back(target)
    after = _held(target)
    return None if before is None or after is None else max(0, before - after)


def limit(fraction: float, device: Device = None) -> None:
    """Limit this process to a fraction of the device's memory.

    Args:
        fraction: of the total memory, above 0 and at most 1; on MPS of Metal's recommended maximum.
        device: None is `flatout.device()`.

    Raises:
        UsageError: for an invalid fraction, and on the CPU, where torch has no such limit.

    Beyond the limit torch raises `torch.OutOfMemoryError`, which `flatout.train_step` handles by
    splitting the batch. Memory that is already in use is not affected.
    """
    if not 0 < fraction <= 1:
        raise UsageError(f"fraction={fraction}: pass a number above 0 and at most 1")
    memory_counters.bound(_device(device), fraction)


@contextmanager
def history(path: str | Path, device: Device = None) -> Iterator[History]:
    """Record every allocation within the `with` block; write a snapshot and a chart of it.

    Args:
        path: the output path without a suffix: `<path>.html` is the chart, a self-contained page;
            the snapshot is `<path>.pickle` on CUDA and XPU (it opens in PyTorch's viewer,
            pytorch.org/memory_viz), `<path>.json` on the CPU.
        device: None is `flatout.device()`.

    Yields:
        A History with the paths `snapshot` and `drawing`; after the block also `peak` in bytes and
        `largest`, the memory in use at the peak by the program's line that allocated it.

    Raises:
        UsageError: if one of the files exists (nothing is overwritten), if the folder does not
            exist, and on MPS, for which torch records no history.

    The chart shows memory over time, by the part of the step that allocated it, and the largest
    allocations at the peak, with file and line. It is written even when the block ends with an
    exception, such as `torch.OutOfMemoryError`. A few steps are enough; steps are slower while it
    records.
    """
    with memory_history.record(Path(path), _device(device)) as recorded:
        yield recorded


def leaks(device: Device = None, *, every: int = 1) -> LeakCheck:
    """A check for memory that grows from step to step.

        check = flatout.memory.leaks()
        for batch in loader:
            step(batch)
            check.check()
        print(check.growth())

    Args:
        device: None is `flatout.device()`.
        every: steps between two measurements.

    Returns:
        A LeakCheck: call `check()` once per step, at the same point; `growth()` returns bytes per
        step, the number of steps compared, whether the growth is significant, and the kinds of
        tensors that increased in number (those that Python can see: not tensors saved for a
        backward pass, but the tensors that keep them alive).

    Raises:
        UsageError: `every` is below 1, or this device's memory cannot be read.

    The first measurements are discarded, and growth that stops does not count. At least 11
    measurements are needed. On the CPU the memory in use is the process's C heap; if that cannot be
    read, its resident memory, in which small leaks take more steps to show.
    """
    if every < 1:
        raise UsageError(f"every={every}: pass 1 or more steps between two measurements")
    target = _device(device)
    if memory_counters.live(target) is None:
        raise UsageError(f"the memory in use on {target} cannot be read on this system")
    return LeakCheck(target, every)


def _device(device: Device, model: nn.Module | None = None) -> torch.device:
    if device is not None:
        return _indexed(torch.device(device))
    if model is not None:
        for parameter in model.parameters():
            return parameter.device
    from flatout_train import devices

    return _indexed(devices.device())


def _indexed(device: torch.device) -> torch.device:
    if device.type in ("cuda", "xpu") and device.index is None:
        return torch.device(device.type, getattr(torch, device.type).current_device())
    return device


def _held(device: torch.device) -> int | None:
    counters = memory_counters.read(device)
    return counters.allocated if device.type == "cpu" else counters.reserved
