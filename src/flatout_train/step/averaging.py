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

from flatout_train.errors import UsageError
from flatout_train.step import ranks

Group = tuple[list[Tensor], list[Tensor]]
"""Tensors of one dtype and device of an average, and those of its model."""


class Average(AveragedModel):
    """torch's AveragedModel with another update: nothing waits for the device.

    `AveragedModel.update_parameters` copies its counter to the device at each update, which waits
    for it, and the buffers one by one. The results are bit-identical.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self._decay = decay
        self._pairs: _Pairs | None = None
        # "cpu" explicitly: `torch.set_default_device` would apply otherwise.
        self.n_averaged = torch.zeros((), dtype=torch.long, device="cpu")

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Move the average towards this model's weights; its buffers are copied."""
        self._write(self._pairs_with(model), copies=self.is_empty())
        self.count()

    @torch.no_grad()
    def move(self, model: nn.Module) -> bool:
        """The device's part of an update that is not the first; `count()` is the host's part.

        Returns False, and does nothing, if average and model are on different devices. It can be
        part of a recorded step, as the values that it reads on the host are the same in each step.
        """
        pairs = self._pairs_with(model)
        if pairs.apart:
            return False
        self._write(pairs, copies=False)
        return True

    def is_empty(self) -> bool:
        """Whether the next update is the first, which copies the weights."""
        return self._counter().item() == 0

    def count(self) -> None:
        """Increment the number of updates."""
        self._counter().add_(1)

    def _counter(self) -> Tensor:
        counter = self._buffers["n_averaged"]
        assert counter is not None
        return counter

    def _pairs_with(self, model: nn.Module) -> _Pairs:
        pairs = self._pairs
        if pairs is None or not pairs.hold(model):
            pairs = self._pairs = _Pairs(self.module, model)
        return pairs

    def _write(self, pairs: _Pairs, copies: bool) -> None:
        for old, new in map(_on_one_device, pairs.weights):
            if copies:
                torch._foreach_copy_(old, new)
            else:
                self._blend(old, new)
        for old, new in map(_on_one_device, pairs.buffers):
            torch._foreach_copy_(old, new)

    def _blend(self, old: list[Tensor], new: list[Tensor]) -> None:
        if old[0].is_floating_point() or old[0].is_complex():
            torch._foreach_lerp_(old, new, 1 - self._decay)
            return
        for average, value in zip(old, new, strict=True):
            average.copy_(average * self._decay + value * (1 - self._decay))

    def __getstate__(self) -> dict[str, Any]:
        """Without the pairs: a copy or pickle does not need the model that it came from."""
        return {**vars(self), "_pairs": None}


class _Pairs:
    """The tensors of an average and of its model, in groups that torch updates in one launch.

    Collecting them takes the host longer than the rest of an update, so they are cached while each
    tensor stays in its module and at its address.
    """

    def __init__(self, average: nn.Module, model: nn.Module) -> None:
        self.weights = _grouped(average.parameters(), model.parameters())
        self.buffers = _grouped(average.buffers(), model.buffers())
        groups = self.weights + self.buffers
        self.apart = any(old[0].device != new[0].device for old, new in groups)
        """Whether some are on another device than the model's."""
        self._model = _watched(model, self)
        places: list[dict[str, Any]] = [
            held
            for module in (*average.modules(), *model.modules())
            for held in (module._parameters, module._buffers, module._modules)
        ]
        self._places = [held for held in places if held]
        self._empty = [held for held in places if not held]
        self._held = self._holders()
        self._tensors = list(chain.from_iterable(chain(*self.weights, *self.buffers)))
        # Other tensors may have no address that shows whether they moved.
        self._tell = all(
            type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
            for tensor in self._tensors
        )
        self._addresses = self._now() if self._tell else []

    def hold(self, model: nn.Module) -> bool:
        """Whether these are still the tensors of the average and of this model."""
        if not self._tell or self._model() is not model or self._now() != self._addresses:
            return False
        holders = self._holders()
        return (
            len(holders) == len(self._held)
            and all(map(operator.is_, holders, self._held))
            and not any(self._empty)
        )

    def let_go(self) -> None:
        """Drop all references to the model: an average must not keep it alive."""
        self.weights, self.buffers = [], []
        self._places, self._empty, self._held, self._tensors = [], [], [], []

    def _holders(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._places)))

    def _now(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._tensors))


def _watched(model: nn.Module, pairs: _Pairs) -> weakref.ref[nn.Module]:
    """A weak reference to the model; when the model is gone, the pairs drop its tensors."""
    reference = weakref.ref(pairs)

    def gone(_: Any) -> None:
        pairs = reference()
        if pairs is not None:
            pairs.let_go()

    return weakref.ref(model, gone)


def _grouped(averages: Iterable[Tensor], values: Iterable[Tensor]) -> list[Group]:
    kinds: dict[Any, Group] = {}
    for average, value in zip(averages, values, strict=True):
        firsts, seconds = kinds.setdefault((average.dtype, average.device, value.device), ([], []))
        firsts.append(average)
        seconds.append(value)
    return list(kinds.values())


def _on_one_device(group: Group) -> Group:
    old, new = group
    device = old[0].device
    return group if new[0].device == device else (old, [value.to(device) for value in new])


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
