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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from flatout_agent.ranks.buckets import BUCKET_BYTES, GradientBucket, ParameterKind
from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.refusal import SPARSE, Refused
from flatout_agent.ranks.rows import mean_gradient
from flatout_agent.ranks.shared_memory import BUFFER_BYTES
from flatout_agent.replacing import Undo, in_reverse, replaced

MARK = "_flatout_version"
"""Attribute of a gradient that all ranks have alike: its version then. Not its identity: Python
gives that of a gradient that is gone to the next one.
"""


class Reducer:
    """Knows the trained parameters and averages what backward passes add to their gradients."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self.exchange_s = 0.0
        self.last_bytes = 0
        """Exchanged after the last backward pass."""
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._numbers: Any = WeakIdKeyDictionary()
        self.paused = False
        """Gradients are asked for by ourselves."""
        self._kinds: list[ParameterKind] = []
        self._layouts: dict[tuple[int, ...], list[GradientBucket]] = {}
        self._usual: dict[Any, tuple[int, ...]] = {}
        """Place of a backward pass in the program -> parameters whose gradients it changes."""

    def add(self, parameters: Iterable[Any]) -> None:
        """Average the gradients of these from now on."""
        for parameter in parameters:
            if isinstance(parameter, torch.Tensor) and parameter not in self._numbers:
                self._numbers[parameter] = len(self._parameters)
                self._parameters.append(weakref.ref(parameter))
                self._kinds.append(
                    ParameterKind(parameter.shape, parameter.dtype, parameter.device)
                )

    def knows(self, tensor: Any) -> bool:
        """Whether this is one of the parameters."""
        return isinstance(tensor, torch.Tensor) and tensor in self._numbers

    def parameters(self) -> list[torch.Tensor | None]:
        """All that were ever added, in the same order in all ranks; None: it is gone."""
        return [reference() for reference in self._parameters]

    def averaged(self, gradients: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """What `torch.autograd.grad` has given for these tensors, averaged where they are known."""
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

    def after_backward(self, place: Any) -> None:
        """A backward pass that began at this place of the program has ended."""
        began = time.perf_counter()
        parameters = self.parameters()
        changed = {number for number, each in enumerate(parameters) if is_changed(each)}
        usual = self._usual.get(place, ())
        self.last_bytes = 0
        if self._exchange(usual, parameters, changed, more=not changed <= set(usual)):
            bits = torch.zeros(len(parameters), dtype=torch.int32)
            bits[list(changed)] = 1
            union = [int(number) for number in self.group.max_(bits).nonzero()]
            rest = tuple(number for number in union if number not in usual)
            self._exchange(rest, parameters, changed, more=False)
            self._usual[place] = tuple(sorted({*union, *usual}))
        self.exchange_s += time.perf_counter() - began

    @torch.no_grad()
    def _exchange(
        self,
        numbers: tuple[int, ...],
        parameters: list[torch.Tensor | None],
        changed: set[int],
        more: bool,
    ) -> bool:
        """Average these parameters' gradients where any rank has changed them.

        Returns whether any rank has changed others. On a CPU the flags travel with the gradients;
        a device would have to be waited for before they can be read.
        """
        flags = [*(float(number in changed) for number in numbers), float(more)]
        buckets = self._layout(numbers)
        travel = bool(buckets) and buckets[0].carries_flags
        seen = [] if travel else self.group.sum_(torch.tensor(flags)).tolist()
        of_number = dict(zip(numbers, seen, strict=False))
        for bucket in buckets:
            message = bucket.message(self.group, [] if seen else flags)
            owners = [parameters[number] for number in bucket.numbers]
            sums = message.send([_gradient(owner) for owner in owners])
            if not seen:
                seen, of_number = sums, dict(zip(numbers, sums, strict=False))
            used = [index for index, number in enumerate(bucket.numbers) if of_number[number]]
            targets = {index: self._target(owners[index], bucket, index) for index in used}
            message.write(targets)
            for target in targets.values():
                setattr(target, MARK, target._version)
            self.last_bytes += message.bytes
        return bool(seen[-1])

    def _layout(self, numbers: tuple[int, ...]) -> list[GradientBucket]:
        """Parameters of one type and device together, as many as one message holds."""
        if numbers in self._layouts:
            return self._layouts[numbers]
        flags_bytes = 8 * (len(numbers) + 1)
        buckets: dict[Any, GradientBucket] = {}
        done: list[GradientBucket] = []
        for number in numbers:
            kind = self._kinds[number]
            key = (kind.dtype, kind.device)
            limit = BUFFER_BYTES - flags_bytes if kind.device.type == "cpu" else BUCKET_BYTES
            if key in buckets and buckets[key].bytes + kind.bytes > limit:
                done.append(buckets.pop(key))
            buckets.setdefault(key, GradientBucket(kind.dtype, kind.device)).add(number, kind.shape)
        done += buckets.values()
        done.sort(key=lambda bucket: not bucket.carries_flags)
        self._layouts[numbers] = done
        return done

    def _target(
        self, owner: torch.Tensor | None, bucket: GradientBucket, index: int
    ) -> torch.Tensor:
        """The gradient that is to become the average."""
        if owner is None:  # gone here, in use in another rank
            return torch.zeros(bucket.shapes[index], dtype=bucket.dtype, device=bucket.device)
        if owner.grad is None:
            owner.grad = torch.zeros_like(owner)
        return owner.grad


def _gradient(owner: torch.Tensor | None) -> torch.Tensor | None:
    gradient = None if owner is None else owner.grad
    if gradient is not None and gradient.layout is not torch.strided:
        raise Refused(SPARSE)
    return gradient


def is_changed(parameter: torch.Tensor | None) -> bool:
    """Whether its gradient has changed since all ranks had it alike."""
    gradient = None if parameter is None else parameter.grad
    return gradient is not None and getattr(gradient, MARK, None) != gradient._version


def watched(reducer: Reducer, guarded: Callable[..., Any]) -> Undo:
    """Average after each backward pass, and what `torch.autograd.grad` gives for parameters.

    guarded: calls (function, *arguments) of ours within the program.
    """
    autograd = torch.autograd
    original, original_grad = autograd.backward, autograd.grad
    inside = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    add_group = torch.optim.Optimizer.add_param_group

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        # Within a backward pass: of activation checkpointing.
        if inside() != -1 or reducer.paused:
            return original(tensors, *args, **kwargs)
        result = original(tensors, *args, **kwargs)
        frame = sys._getframe(1)
        caller = frame.f_back or frame
        guarded(reducer.after_backward, (caller.f_code, caller.f_lasti, len(reducer._parameters)))
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
