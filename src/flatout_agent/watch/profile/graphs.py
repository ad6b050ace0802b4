"""Losses that are kept with their graphs.

Marks on autograd's nodes show them: each node has a dictionary of metadata that lives as long as
the node does. They do not change the results.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

KEY = "flatout"
PRESENT = 2
"""The last steps' losses may still be alive, held by variables of the loop."""


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
