"""One recorded step: the buffers for its batches, its results, and the places of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class StepRecording:
    inputs: list[Tensor]
    outputs: dict[str, Tensor]
    gradients: Sequence[tuple[Tensor, Tensor | None]]
    """Each parameter with the tensor that a replay writes its gradient to."""
    replay: Callable[[], None]
    used: int = 0

    def fill(self, tensors: list[Tensor]) -> None:
        """Copy a batch's tensors, in the order of `nests.tensors`, into the recording's own."""
        if len(tensors) == 1:
            self.inputs[0].copy_(tensors[0], non_blocking=True)
        elif tensors:
            torch._foreach_copy_(self.inputs, tensors, non_blocking=True)

    def has_gradients(self) -> bool:
        """Whether they are in `.grad`; checking the first is enough: `zero_grad` clears all."""
        for parameter, gradient in self.gradients:
            if gradient is not None:
                return parameter.grad is gradient
        return True

    def put_gradients(self) -> None:
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
