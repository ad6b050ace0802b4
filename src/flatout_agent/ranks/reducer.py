"""Averages the gradients of the ranks: after each backward pass every rank has the same `.grad`.

By linearity that is right however a script goes on: it may accumulate, clip, unscale or read them.
Which gradients a backward pass has changed is told by the tensors themselves (their version); the
ranks have to exchange the same ones, so each backward pass carries, beside the gradients that it
had at this place of the program before, a flag for each, and whether there were others.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.rows import mean_gradient
from flatout_agent.replacing import Undo, in_reverse, replaced

MARK = "_flatout_version"
"""Attribute of a gradient that all ranks have alike: its version then. Not its identity: Python
gives that of a gradient that is gone to the next one.
"""
BUCKET_BYTES = 64 * 2**20
"""Gradients are exchanged in pieces of this size: a copy of all of them would cost their memory."""


class UnfitGradientError(Exception):
    """The gradients cannot be averaged; the message says why."""


class Reducer:
    """Knows the trained parameters and averages what backward passes add to their gradients."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self.exchange_s = 0.0
        self.last_bytes = 0
        """Exchanged after the last backward pass."""
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._numbers: Any = WeakIdKeyDictionary()
        self._usual: dict[Any, tuple[int, ...]] = {}
        """Place of a backward pass in the program -> parameters whose gradients it changes."""

    def add(self, parameters: Iterable[Any]) -> None:
        """Average the gradients of these from now on."""
        for parameter in parameters:
            if isinstance(parameter, torch.Tensor) and parameter not in self._numbers:
                self._numbers[parameter] = len(self._parameters)
                self._parameters.append(weakref.ref(parameter))

    def knows(self, tensor: Any) -> bool:
        """Whether this is one of the parameters."""
        return isinstance(tensor, torch.Tensor) and tensor in self._numbers

    def parameters(self) -> list[torch.Tensor]:
        """Those that are still there."""
        return [each for reference in self._parameters if (each := reference()) is not None]

    def after_backward(self, place: Any) -> None:
        """A backward pass that began at this place of the program has ended."""
        began = time.perf_counter()
        changed = self._changed()
        usual = self._usual.get(place, ())
        self.last_bytes = 0
        flags = self._average(usual, changed, more=not changed <= set(usual))
        if flags[-1]:
            union = self._union(changed)
            rest = tuple(number for number in union if number not in usual)
            self._average(rest, changed, more=False)
            self._usual[place] = tuple(sorted({*union, *usual}))
        self.exchange_s += time.perf_counter() - began

    def _changed(self) -> set[int]:
        changed = set()
        for number, reference in enumerate(self._parameters):
            parameter = reference()
            gradient = None if parameter is None else parameter.grad
            if gradient is not None and getattr(gradient, MARK, None) != gradient._version:
                changed.add(number)
        return changed

    def _union(self, changed: set[int]) -> list[int]:
        bits = torch.zeros(len(self._parameters), dtype=torch.int32)
        bits[list(changed)] = 1
        return [int(number) for number in self.group.max_(bits).nonzero()]

    def _average(self, numbers: tuple[int, ...], changed: set[int], more: bool) -> list[bool]:
        """Average the gradients of these parameters; flags: which of them any rank had changed.

        The last flag: whether any rank has changed others.
        """
        own = [number in changed for number in numbers]
        flags = self._flags([*own, more])
        chosen = [number for number, flag in zip(numbers, flags[:-1], strict=True) if flag]
        for bucket in self._buckets(chosen):
            self._average_bucket(bucket)
        return flags

    def _flags(self, own: list[bool]) -> list[bool]:
        if len(own) == 1 and own[0] is False and not self._parameters:
            return own
        return [
            bool(flag) for flag in self.group.max_(torch.tensor(own, dtype=torch.int32)).tolist()
        ]

    def _buckets(self, numbers: list[int]) -> Iterator[list[torch.Tensor]]:
        """Parameters of one type and device, BUCKET_BYTES of them at most."""
        open_buckets: dict[Any, list[torch.Tensor]] = {}
        sizes: dict[Any, int] = {}
        for number in numbers:
            parameter = self._parameters[number]()
            if parameter is None:
                continue
            key = (parameter.dtype, parameter.device)
            size = parameter.numel() * parameter.element_size()
            if key in open_buckets and sizes[key] + size > BUCKET_BYTES:
                yield open_buckets.pop(key)
                sizes[key] = 0
            open_buckets.setdefault(key, []).append(parameter)
            sizes[key] = sizes.get(key, 0) + size
        yield from open_buckets.values()

    @torch.no_grad()
    def _average_bucket(self, parameters: list[torch.Tensor]) -> None:
        gradients = [_gradient(parameter) for parameter in parameters]
        sizes = [gradient.numel() for gradient in gradients]
        flat = gradients[0].new_empty(sum(sizes))
        parts = zip(torch.split(flat, sizes), gradients, strict=True)
        views = [part.view(gradient.shape) for part, gradient in parts]
        torch._foreach_copy_(views, gradients)
        self.group.sum_(torch.view_as_real(flat) if flat.is_complex() else flat)
        self.last_bytes += flat.numel() * flat.element_size()
        flat /= self.group.size
        torch._foreach_copy_(gradients, views)
        for gradient in gradients:
            setattr(gradient, MARK, gradient._version)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The parameter's gradient; zeros where this rank has computed none and another one has."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.layout is not torch.strided:
        raise UnfitGradientError("it has sparse gradients (an embedding with sparse=True)")
    return parameter.grad


def watched(reducer: Reducer, guarded: Callable[..., Any]) -> Undo:
    """Average after each backward pass, and what `torch.autograd.grad` gives for parameters.

    guarded: calls (function, *arguments) of ours within the program.
    """
    autograd = torch.autograd
    original, original_grad = autograd.backward, autograd.grad
    inside = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    add_group = torch.optim.Optimizer.add_param_group

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if inside() != -1:  # of activation checkpointing, within a backward pass
            return original(tensors, *args, **kwargs)
        result = original(tensors, *args, **kwargs)
        frame = sys._getframe(1)
        caller = frame.f_back or frame
        guarded(reducer.after_backward, (caller.f_code, caller.f_lasti, len(reducer._parameters)))
        return result

    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = original_grad(outputs, inputs, *args, **kwargs)
        if inside() != -1:
            return gradients
        asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        return tuple(
            guarded(mean_gradient, gradient, reducer.group)
            if gradient is not None and reducer.knows(tensor)
            else gradient
            for gradient, tensor in zip(gradients, asked, strict=True)
        )

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
