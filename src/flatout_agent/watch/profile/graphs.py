"""Graphs that outlive their step: losses that are kept, and forward passes without a backward.

Marks on autograd's nodes show them: each node has a dictionary of metadata that lives as long as
the node does, and hooks that run when the backward pass reaches it. Neither changes the results.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.watch.tensors import tensors_in

KEY = "flatout"
PRESENT = 2
"""The last steps' losses may still be alive, held by variables of the loop."""
OUTPUTS = 8


class _Mark:
    """A mark that dies with the node whose metadata holds it."""


class Losses:
    """Whether the losses of past steps hold their graphs."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, weakref.ref[_Mark]]] = []

    def saw(self, loss: torch.Tensor, step: int) -> None:
        """`backward` is about to run on this tensor."""
        node = loss.grad_fn
        if node is not None:
            mark = _Mark()
            metadata: Any = node.metadata  # a property, to torch's types a method
            metadata[KEY] = mark
            self._marks.append((step, weakref.ref(mark)))

    def kept(self, step: int) -> bool:
        """Whether most of the losses from before the last steps are alive."""
        past = [mark for at, mark in self._marks if at < step - PRESENT]
        alive = sum(mark() is not None for mark in past)
        return len(past) > PRESENT and alive > len(past) / 2


class Forwards:
    """Training calls of a root model, and how many of them no backward pass reached."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, list[bool]]] = []
        self._handles: list[Any] = []

    def called(self, output: Any, step: int) -> None:
        """A root model has returned `output` in training."""
        visits: list[bool] = []
        nodes = {
            tensor.grad_fn: None for tensor in tensors_in(output) if tensor.grad_fn is not None
        }
        for node in list(nodes)[:OUTPUTS]:
            self._handles.append(node.register_prehook(_marking(visits)))
        if nodes:
            self._calls.append((step, visits))

    def unused(self, before: int) -> int:
        """How many of the calls in steps before this one were never followed by a backward pass."""
        return sum(step < before and not visits for step, visits in self._calls)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _marking(visits: list[bool]) -> Callable[[Any], None]:
    def hook(gradients: Any) -> None:
        visits.append(True)

    return hook
