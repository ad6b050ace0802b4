"""Averages the gradients of the ranks: after each backward pass every rank has the same `.grad`.

By linearity that is right whatever the script does next: it may accumulate, clip, unscale or read
them. The tensors' versions show which gradients a backward pass has changed. The ranks have to
exchange the same ones, so they first agree on those that any of them has changed.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from flatout_agent.attach.replacing import Undo, in_reverse, replaced
from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.refusal import SPARSE, Refused
from flatout_agent.ranks.rows import mean_gradient

MARK = "_flatout_version"
"""Attribute of a gradient that is equal in all ranks: its version then. Not its identity, as Python
reuses that of a freed gradient.
"""

BUCKET_BYTES = 64 * 2**20
"""The most bytes of a message: a copy of all gradients at once would cost their memory."""


class ParameterKind(NamedTuple):
    """The form of a parameter's gradient, known even when the parameter is gone."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class GradientBucket:
    """Parameters of one type on one device whose gradients are exchanged together."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.numbers: list[int] = []
        self.shapes: list[torch.Size] = []
        self.count = 0
        """Values of all gradients."""

    def add(self, number: int, shape: torch.Size) -> None:
        """Add a parameter, identified by its number."""
        self.numbers.append(number)
        self.shapes.append(shape)
        self.count += shape.numel()

    @property
    def bytes(self) -> int:
        return self.count * self.dtype.itemsize

    def averages(
        self, group: RankGroup, gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """The ranks' averages of these gradients; None where this rank has no such gradient."""
        flat = torch.empty(self.count, dtype=self.dtype, device=self.device)
        parts = torch.split(flat, [shape.numel() for shape in self.shapes])
        places = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        filled = []
        for place, gradient in zip(places, gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                filled.append(place)
        if filled:
            torch._foreach_copy_(filled, [each for each in gradients if each is not None])
        if self.count:
            group.sum_(torch.view_as_real(flat) if flat.is_complex() else flat)
            flat /= group.size
        return places


class TrainedParameters(ABC):
    """All parameters that optimizers train, and the handling of their gradients."""

    def __init__(self) -> None:
        self.paused = False
        """Whether flatout itself asks for gradients."""
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._numbers: Any = WeakIdKeyDictionary()
        self._kinds: list[ParameterKind] = []

    def add(self, parameters: Iterable[Any]) -> None:
        """Register these."""
        for parameter in parameters:
            if isinstance(parameter, torch.Tensor) and parameter not in self._numbers:
                self._numbers[parameter] = len(self._parameters)
                self._parameters.append(weakref.ref(parameter))
                self._kinds.append(
                    ParameterKind(parameter.shape, parameter.dtype, parameter.device)
                )

    def knows(self, tensor: Any) -> bool:
        """Whether this is a registered parameter."""
        return isinstance(tensor, torch.Tensor) and tensor in self._numbers

    def parameters(self) -> list[torch.Tensor | None]:
        """All parameters ever added, in the same order in all ranks; None for those that
        are gone.
        """
        return [reference() for reference in self._parameters]

    @abstractmethod
    def averaged(self, gradients: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Process the results of `torch.autograd.grad` for these tensors."""

    @abstractmethod
    def after_backward(self) -> None:
        """A backward pass has ended."""


class Reducer(TrainedParameters):
    """Averages what backward passes add to the gradients."""

    def __init__(self, group: RankGroup) -> None:
        super().__init__()
        self.group = group
        self.exchange_s = 0.0
        self.last_bytes = 0
        """Bytes exchanged after the last backward pass."""
        self._layouts: dict[tuple[int, ...], list[GradientBucket]] = {}

    def averaged(self, gradients: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results of `torch.autograd.grad` for these tensors, averaged for registered
        parameters.
        """
        known = [self.knows(tensor) for tensor in tensors]
        if not any(known):
            return tuple(gradients)
        given = torch.tensor([gradient is not None for gradient in gradients], dtype=torch.int32)
        used = self.group.max_(given).tolist()
        return tuple(
            mean_gradient(torch.zeros_like(tensor) if gradient is None else gradient, self.group)
            if is_known and is_used
            else gradient
            for gradient, tensor, is_known, is_used in zip(
                gradients, tensors, known, used, strict=True
            )
        )

    @torch.no_grad()
    def after_backward(self) -> None:
        """A backward pass has ended: average the gradients that it changed in any rank."""
        began = time.perf_counter()
        parameters = self.parameters()
        self.last_bytes = 0
        if parameters:
            changed = torch.tensor([is_changed(each) for each in parameters], dtype=torch.int32)
            union = tuple(int(number) for number in self.group.max_(changed).nonzero())
            for bucket in self._layout(union):
                owners = [parameters[number] for number in bucket.numbers]
                averages = bucket.averages(self.group, [_gradient(owner) for owner in owners])
                here = []  # the others are gone here but in use in another rank
                for owner, average in zip(owners, averages, strict=True):
                    if owner is not None:
                        owner.grad = torch.zeros_like(owner) if owner.grad is None else owner.grad
                        here.append((owner.grad, average))
                if here:
                    torch._foreach_copy_(
                        [target for target, _ in here], [average for _, average in here]
                    )
                for target, _ in here:
                    setattr(target, MARK, target._version)
                self.last_bytes += bucket.bytes
        self.exchange_s += time.perf_counter() - began

    def _layout(self, numbers: tuple[int, ...]) -> list[GradientBucket]:
        """Group parameters of one type and device, as many as one message holds."""
        if numbers in self._layouts:
            return self._layouts[numbers]
        buckets: dict[Any, GradientBucket] = {}
        done: list[GradientBucket] = []
        for number in numbers:
            kind = self._kinds[number]
            key = (kind.dtype, kind.device)
            if key in buckets and buckets[key].bytes + kind.bytes > BUCKET_BYTES:
                done.append(buckets.pop(key))
            buckets.setdefault(key, GradientBucket(kind.dtype, kind.device)).add(number, kind.shape)
        done += buckets.values()
        self._layouts[numbers] = done
        return done


def _gradient(owner: torch.Tensor | None) -> torch.Tensor | None:
    gradient = None if owner is None else owner.grad
    if gradient is not None and gradient.layout is not torch.strided:
        raise Refused(SPARSE)
    return gradient


def is_changed(parameter: torch.Tensor | None) -> bool:
    """Whether its gradient has changed since it was equal in all ranks."""
    gradient = None if parameter is None else parameter.grad
    return gradient is not None and getattr(gradient, MARK, None) != gradient._version


def watched(reducer: TrainedParameters, guarded: Callable[..., Any]) -> Undo:
    """Average after each backward pass, and average the results of `torch.autograd.grad` for
    parameters.

    guarded: makes our calls (function, *arguments) within the program.
    """
    autograd = torch.autograd
    original, original_grad = autograd.backward, autograd.grad
    inside = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    add_group = torch.optim.Optimizer.add_param_group

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        # Within a backward pass: activation checkpointing.
        if inside() != -1 or reducer.paused:
            return original(tensors, *args, **kwargs)
        result = original(tensors, *args, **kwargs)
        guarded(reducer.after_backward)
        return result

    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = original_grad(outputs, inputs, *args, **kwargs)
        if inside() != -1 or reducer.paused:
            return gradients
        asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        return guarded(reducer.averaged, gradients, asked)

    def add_param_group(optimizer: Any, param_group: Any) -> Any:
        result = add_group(optimizer, param_group)
        reducer.add(optimizer.param_groups[-1]["params"])
        return result

    return in_reverse(
        [
            replaced(autograd, "backward", backward),
            replaced(autograd, "grad", grad),
            replaced(torch.optim.Optimizer, "add_param_group", add_param_group),
        ]
    )
