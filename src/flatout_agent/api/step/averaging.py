"""The moving average of a model's weights, kept on the device."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from flatout_agent.api.step.buffers import by_kind, copy_all


class Average(AveragedModel):
    """torch's own, but for how it is updated: nothing waits for the device.

    `AveragedModel.update_parameters` copies its counter to the device at each update, which waits
    for it, and the buffers one by one. The numbers are the same to the last bit.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self._decay = decay

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Move the average towards this model's weights; its buffers are copied."""
        mine, theirs = list(self.module.parameters()), list(model.parameters())
        if int(self.n_averaged) == 0:  # the counter stays on the host
            copy_all(mine, theirs)
        else:
            for old, new in by_kind(mine, theirs):
                self._move(old, new)
        copy_all(list(self.module.buffers()), list(model.buffers()))
        self.n_averaged += 1

    def _move(self, old: list[Tensor], new: list[Tensor]) -> None:
        if old[0].is_floating_point() or old[0].is_complex():
            torch._foreach_lerp_(old, new, 1 - self._decay)
            return
        for average, value in zip(old, new, strict=True):
            average.copy_(average * self._decay + value * (1 - self._decay))
