"""Where the memory of a step is, and which of its kernels run: checked before each replay.

The host pays for this check in every step, so it reads each tensor's address once and each
`requires_grad` once, and compares the rest a list at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

_ABSENT = object()
_FROZEN = operator.attrgetter("requires_grad")


class Placement:
    """The memory of model and optimizer, to detect when any of it is replaced."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.parameters = list(model.parameters())
        places = [
            (held, name or "model")
            for name, module in model.named_modules()
            for held in (module._parameters, module._buffers, module._modules)
            if held
        ]
        self._held: list[dict[str, Any]] = [held for held, _ in places]
        self._labels = [label for _, label in places]
        self._before = [dict(held) for held in self._held]
        named = [
            (held, name, value)
            for held in self._held
            for name, value in held.items()
            if isinstance(value, Tensor)
        ]
        self._tensors = [tensor for _, _, tensor in named]
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        compared = [_needs_identity(tensor) for tensor in self._tensors]
        self._singles = [list(column) for column in zip(*compress(named, compared), strict=True)]
        self._optimizer = optimizer
        # the objects, not their ids: a freed object's id may be reused
        self._groups, self._state = optimizer.param_groups, optimizer.state
        self._sizes = self._group_sizes()
        self._find_flags(list(model.modules()))

    def moved(self) -> str | None:
        """What was replaced or moved, by name, or None."""
        optimizer = self._optimizer
        if optimizer.param_groups is not self._groups or optimizer.state is not self._state:
            return "the optimizer's state"
        if self._group_sizes() != self._sizes:
            return "the optimizer's parameter list"
        if self._is_held() and list(map(Tensor.data_ptr, self._tensors)) == self._addresses:
            return None
        return self._name_moved()

    def _is_held(self) -> bool:
        """Whether each module holds the same tensors and modules.

        Comparing dictionaries checks identity first, in C. Only replaced entries are compared by
        value: tensors of several elements then raise; those of one element are checked separately.
        """
        try:
            if self._held != self._before:
                return False
        except Exception:
            return False
        if not self._singles:
            return True
        held, names, tensors = self._singles
        return all(map(operator.is_, map(operator.getitem, held, names), tensors))

    def _name_moved(self) -> str:
        addresses = dict(zip(map(id, self._tensors), self._addresses, strict=True))
        for held, before, label in zip(self._held, self._before, self._labels, strict=True):
            for name in {**before, **held}:
                value = held.get(name, _ABSENT)
                if value is not before.get(name, _ABSENT):
                    return f"{label}.{name}"
                if isinstance(value, Tensor) and value.data_ptr() != addresses[id(value)]:
                    return f"{label}.{name}"
        return "the model's memory"

    def _find_flags(self, modules: list[nn.Module]) -> None:
        # directly from the instance: attribute lookup on modules takes twice as long
        plain = [
            "training" in vars(module) and not hasattr(type(module), "training")
            for module in modules
        ]
        self._instances = [vars(module) for module in compress(modules, plain)]
        self._others = [
            module for module, is_plain in zip(modules, plain, strict=True) if not is_plain
        ]
        self._training: list[bool] = []
        self._frozen: list[bool] = []
        self._flags: Hashable = ()

    def flags(self) -> Hashable:
        """The state that decides which kernels run: training mode of each module, frozen
        parameters.

        The same object as long as nothing changes.
        """
        training = [attributes["training"] for attributes in self._instances]
        if self._others:
            training += [module.training for module in self._others]
        frozen = list(map(_FROZEN, self.parameters))
        if training != self._training or frozen != self._frozen:
            self._training, self._frozen = training, frozen
            self._flags = tuple(training), tuple(frozen)
        return self._flags

    def _group_sizes(self) -> list[int]:
        return [len(group["params"]) for group in self._optimizer.param_groups]


def _needs_identity(tensor: Tensor) -> bool:
    """Whether `==` with another tensor may give a single truth value instead of raising."""
    return type(tensor) not in (Tensor, nn.Parameter) or tensor.numel() == 1
