"""Losses and gradient norms of past steps, read without making the host wait for the device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

KEEP = 10_000
"""Values that are kept, the latest."""
BLOCK = 4
"""Steps whose values are copied to the host together."""
IN_FLIGHT = 3
"""Most blocks being copied: this limits how far the host may run ahead of the device."""


@dataclass(frozen=True)
class Metrics:
    """A training step's counters and measurements, as far as they have arrived from the device."""

    steps: int
    """Optimizer steps, including skipped ones."""
    calls: int
    """Calls of the step: `accumulate` of them make one optimizer step."""
    skipped: int
    """Steps skipped because the loss or a gradient was NaN or Inf."""
    splits: int
    """Calls whose batch was split because it did not fit into memory."""
    loss_scale: float | None
    """The factor by which fp16 multiplies the loss; None without a scaler."""
    arrived: int
    """The last step whose values have arrived. On the CPU it is the last step."""
    losses: tuple[float, ...]
    """Loss of each optimizer step (the weighted mean of its calls), the last 10,000, oldest first;
    the last one is that of step `arrived`."""
    grad_norms: tuple[float, ...]
    """L2 norm of each step's whole gradient before clipping, like `losses`. Empty if no norm was
    computed: on the CPU without `clip_norm` (`clip_norm=math.inf` computes it)."""


class Copies(Protocol):
    """How values are copied from the device."""

    def start(self, values: Tensor) -> Callable[[bool], list[float] | None]:
        """Start to copy 1-d `values`; the returned `read(wait)` returns them, or None if
        not ready.
        """


class PinnedCopies:
    """Copies into pinned memory, each with an event that marks its completion (CUDA, ROCm, XPU)."""

    def __init__(self, device: torch.device) -> None:
        self._module: Any = torch.get_device_module(device)

    def start(self, values: Tensor) -> Callable[[bool], list[float] | None]:
        # "cpu" explicitly: `torch.set_default_device` would apply otherwise
        host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        host.copy_(values, non_blocking=True)
        event = self._module.Event()
        event.record(self._module.current_stream(values.device))

        def read(wait: bool) -> list[float] | None:
            if wait:
                event.synchronize()
            return host.tolist() if wait or event.query() else None

        return read


class WaitingCopies:
    """For devices without pinned memory (MPS): each block waits for the device."""

    def start(self, values: Tensor) -> Callable[[bool], list[float] | None]:
        return lambda wait: values.tolist()


@dataclass
class _Block:
    """Some steps' values, on their way to the host."""

    first: int
    width: int
    parts: list[Any] = field(default_factory=list)
    """Norms of the parameters' gradients at each step, still on the device, or None if there are
    none."""
    read: Callable[[bool], list[float] | None] | None = None


@dataclass(frozen=True)
class Bad:
    """A step whose loss or gradient was not finite."""

    step: int
    loss: float
    norm: float | None
    parts: Tensor | None
    """Gradient norm of each parameter, on the device."""


class Histories:
    """The values of the last steps."""

    def __init__(self, device: torch.device, copies: Copies | None = None) -> None:
        self.losses: deque[float] = deque(maxlen=KEEP)
        self.norms: deque[float] = deque(maxlen=KEEP)
        self.scale: float | None = None
        self.arrived = 0
        if copies is None:
            pinned = device.type in ("cuda", "xpu")
            copies = PinnedCopies(device) if pinned else WaitingCopies()
        self._copies = copies
        self._values: list[Tensor] = []
        self._block: _Block | None = None
        self._flying: deque[_Block] = deque()

    def note(self, step: int, loss: float, norm: float | None, scale: float | None) -> None:
        """Add the values of a step that are on the host already."""
        self.arrived = step
        self.losses.append(loss)
        if norm is not None:
            self.norms.append(norm)
        self.scale = scale

    def add(self, step: int, values: list[Tensor], parts: Tensor | None) -> None:
        """Add values on the device, each 0-d and never overwritten: loss, norm, loss scale.

        `parts` are the gradient norms of the parameters; they stay on the device.
        """
        block = self._block
        if block is None or block.width != len(values):
            self.send()
            block = self._block = _Block(step, len(values))
        self._values += values
        block.parts.append(parts)
        if len(block.parts) == BLOCK:
            self.send()
            self._hold_back()

    def send(self) -> None:
        """Start to copy the collected values to the host."""
        if self._block is not None:
            self._block.read = self._copies.start(torch.stack(self._values))
            self._flying.append(self._block)
            self._values, self._block = [], None

    def _hold_back(self) -> None:
        """Wait for the device if the host is far ahead.

        A replay is one launch, and a device queues a thousand: batches would pile up on it, and a
        step that is not finite would be detected much later.
        """
        if len(self._flying) > IN_FLIGHT and self._flying[0].read is not None:
            self._flying[0].read(True)

    def take(self, wait: bool = False) -> list[Bad]:
        """Process what has arrived; returns the steps that were not finite."""
        bad: list[Bad] = []
        while self._flying:
            block = self._flying[0]
            values = block.read(wait) if block.read is not None else None
            if values is None:
                break
            self._flying.popleft()
            bad += self._taken(block, values)
        return bad

    def _taken(self, block: _Block, values: list[float]) -> list[Bad]:
        bad = []
        for place, parts in enumerate(block.parts):
            step_values = values[place * block.width : (place + 1) * block.width]
            loss = step_values[0]
            norm = step_values[1] if block.width > 1 else None
            scale = step_values[2] if block.width > 2 else None
            self.note(block.first + place, loss, norm, scale)
            if not math.isfinite(loss) or (norm is not None and not math.isfinite(norm)):
                bad.append(Bad(block.first + place, loss, norm, parts))
        return bad
