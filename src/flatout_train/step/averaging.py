"""The moving average of a model's weights, kept on the device."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Group = tuple[list[Tensor], list[Tensor]]
"""Tensors of one kind of an average, and those of its model."""


class Average(AveragedModel):
    """torch's own, but for how it is updated: nothing waits for the device.

    `AveragedModel.update_parameters` copies its counter to the device at each update, which waits
    for it, and the buffers one by one. The numbers are the same to the last bit.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self._decay = decay
        self._pairs: _Pairs | None = None
        # On the host by name: `torch.set_default_device` holds here as well.
        self.n_averaged = torch.zeros((), dtype=torch.long, device="cpu")

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Move the average towards this model's weights; its buffers are copied."""
        pairs = self._pairs
        if pairs is None or not pairs.hold(model):
            pairs = self._pairs = _Pairs(self.module, model)
        first = int(self.n_averaged) == 0
        for old, new in map(_on_one_device, pairs.weights):
            if first:
                torch._foreach_copy_(old, new)
            else:
                self._move(old, new)
        for old, new in map(_on_one_device, pairs.buffers):
            torch._foreach_copy_(old, new)
        self.n_averaged += 1

    def _move(self, old: list[Tensor], new: list[Tensor]) -> None:
        if old[0].is_floating_point() or old[0].is_complex():
            torch._foreach_lerp_(old, new, 1 - self._decay)
            return
        for average, value in zip(old, new, strict=True):
            average.copy_(average * self._decay + value * (1 - self._decay))

    def __getstate__(self) -> dict[str, Any]:
        """Without the pairs: a copy or pickle has no need of the model that it came from."""
        return {**vars(self), "_pairs": None}


class _Pairs:
    """The tensors of an average and of its model, in groups that torch takes in one launch.

    To find them takes the host longer than all else in an update, so they are kept while each
    stands where it stood: in its module, at its address.
    """

    def __init__(self, average: nn.Module, model: nn.Module) -> None:
        self.weights = _grouped(average.parameters(), model.parameters())
        self.buffers = _grouped(average.buffers(), model.buffers())
        self._model = _watched(model, self)
        places: list[dict[str, Any]] = [
            held
            for module in (*average.modules(), *model.modules())
            for held in (module._parameters, module._buffers, module._modules)
        ]
        self._places = [held for held in places if held]
        self._empty = [held for held in places if not held]
        self._held = self._found()
        self._tensors = list(chain.from_iterable(chain(*self.weights, *self.buffers)))
        # Of others there may be no address to tell whether they moved.
        self._tell = all(
            type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
            for tensor in self._tensors
        )
        self._addresses = self._now() if self._tell else []

    def hold(self, model: nn.Module) -> bool:
        """Whether they still are those of the average and of this model."""
        if not self._tell or self._model() is not model or self._now() != self._addresses:
            return False
        found = self._found()
        return (
            len(found) == len(self._held)
            and all(map(operator.is_, found, self._held))
            and not any(self._empty)
        )

    def let_go(self) -> None:
        """Keep nothing of the model: whoever holds on to the average need not hold on to it."""
        self.weights, self.buffers = [], []
        self._places, self._empty, self._held, self._tensors = [], [], [], []

    def _found(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._places)))

    def _now(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._tensors))


def _watched(model: nn.Module, pairs: _Pairs) -> weakref.ref[nn.Module]:
    """A reference to the model; when it is gone, the pairs let go of what it held."""
    reference = weakref.ref(pairs)

    def gone(_: Any) -> None:
        found = reference()
        if found is not None:
            found.let_go()

    return weakref.ref(model, gone)


def _grouped(ones: Iterable[Tensor], others: Iterable[Tensor]) -> list[Group]:
    kinds: dict[Any, Group] = {}
    for one, other in zip(ones, others, strict=True):
        firsts, seconds = kinds.setdefault((one.dtype, one.device, other.device), ([], []))
        firsts.append(one)
        seconds.append(other)
    return list(kinds.values())


def _on_one_device(group: Group) -> Group:
    old, new = group
    device = old[0].device
    return group if new[0].device == device else (old, [value.to(device) for value in new])
