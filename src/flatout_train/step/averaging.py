"""The moving average of a model's weights, kept on the device."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from flatout_train.errors import UsageError
from flatout_train.step import ranks
from flatout_train.step.buffers import by_kind, copy_all


class Average(AveragedModel):
    """torch's AveragedModel with another update: nothing waits for the device.

    `AveragedModel.update_parameters` copies its counter to the device at each update, which waits
    for it, and the buffers one by one. The results are bit-identical.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self._decay = decay
        # "cpu" explicitly: `torch.set_default_device` would apply otherwise.
        self.n_averaged = torch.zeros((), dtype=torch.long, device="cpu")

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Move the average towards this model's weights; its buffers are copied."""
        weights = list(self.module.parameters()), list(model.parameters())
        if self.n_averaged == 0:
            copy_all(*weights)
        else:
            for old, new in by_kind(*weights):
                if old[0].is_floating_point() or old[0].is_complex():
                    torch._foreach_lerp_(old, new, 1 - self._decay)
                    continue
                for average, value in zip(old, new, strict=True):
                    average.copy_(average * self._decay + value * (1 - self._decay))
        copy_all(list(self.module.buffers()), list(model.buffers()))
        self.n_averaged += 1


def average_of(model: nn.Module, bare: nn.Module, decay: float | None) -> Average | None:
    """The average of a model without its wrappers, or None if `decay` is None.

    Raises UsageError if the model cannot be copied.
    """
    if decay is None:
        return None
    ranks_of_model = ranks.of(model)
    if ranks_of_model is not None and not ranks_of_model.can_reduce:
        raise UsageError(
            f"ema={decay} averages a copy of the model, and torch cannot copy one that fully_shard "
            "has sharded: pass ema=None, or average the saved weights"
        )
    return Average(bare, decay)
