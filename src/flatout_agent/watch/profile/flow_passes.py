"""The backward passes of the counted steps: what each differentiates, and what becomes of that.

No tensor is kept alive.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent.watch import places
from flatout_agent.watch.profile.storages import storage_key

if TYPE_CHECKING:
    from flatout_agent.watch.profile.flow import FlowLine

MOST = 1024
"""Passes that are noted; of more nothing is told."""
UNKNOWN: tuple[Any, ...] = ((), (), None, False, ())
"""In place of arguments that the engine is not given by position."""
Identity = tuple[int, int, int]
"""Of a tensor that lives: its object, its storage, its version."""


@dataclass(slots=True)
class FlowPass:
    """One backward pass: the operators from `begin` to before `end`, with those of hooks."""

    chain: tuple[FlowLine, ...]
    """The user's lines that led to it, the innermost first."""
    step: int
    begin: int
    gives: bool
    """By torch.autograd.grad: it returns the gradients; else they are added to `.grad`."""
    create_graph: bool
    roots: tuple[Identity, ...]
    """What is differentiated; empty: not known."""
    seeds: tuple[int, ...]
    """Operators that made the gradients it begins with."""
    inputs: tuple[Identity, ...]
    """By what; empty: by all leaves."""
    leaves: tuple[weakref.ref[torch.Tensor], ...]
    """The inputs of torch.autograd.grad, where all of them are leaves."""
    end: int = -1
    number: int = -1
    """Among the passes, in the order in which they end."""
    failed: bool = False

    @property
    def where(self) -> str | None:
        """file:line of the user's that calls it."""
        line = self.chain[0] if self.chain else None
        return f"{places.display(line.file)}:{line.number}" if line is not None else None


@dataclass(slots=True)
class PassPair:
    """Two passes of a step over the same: one gives gradients, the other leaves them in `.grad`."""

    first: FlowPass
    second: FlowPass
    gradients: tuple[int | None, ...] = ()
    """Storages of `.grad` of the inputs of the one that gives gradients, after both."""


class FlowPasses:
    """Of the counted steps, in the order in which they begin."""

    def __init__(self) -> None:
        self.passes: list[FlowPass] = []
        self.pairs: list[PassPair] = []
        self.overflow = False
        self._open: list[FlowPass] = []
        self._alike: dict[tuple[int, tuple[Identity, ...]], list[FlowPass]] = defaultdict(list)

    def begins(
        self,
        args: Sequence[Any],
        gives: bool,
        at: tuple[int, int],
        chain: tuple[FlowLine, ...],
        maker: Callable[[torch.Tensor], int],
    ) -> None:
        """The engine is about to be called with these arguments.

        at: the step, and the number of the next operator. maker: the operator that made a tensor.
        """
        outputs, seeds, _, create_graph, inputs = (*args, *UNKNOWN[len(args) :])[:5]
        known = [tensor for tensor in seeds if isinstance(tensor, torch.Tensor)]
        given = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor)]
        leaves = gives and len(given) == len(inputs) and all(map(_leaf, given))
        self._open.append(
            FlowPass(
                chain,
                at[0],
                at[1],
                gives,
                bool(create_graph),
                _identities(outputs),
                tuple(map(maker, known)) if len(known) == len(seeds) else (),
                _identities(inputs),
                tuple(map(weakref.ref, given)) if leaves else (),
            )
        )

    def ends(self, at: int, failed: bool) -> None:
        """It has returned, or raised an error. at: the number of the next operator."""
        if not self._open:
            return
        item = self._open.pop()
        item.end, item.failed = at, failed
        if len(self.passes) >= MOST:
            self.overflow = True
            return
        item.number = len(self.passes)
        self.passes.append(item)
        if item.failed:
            return
        if item.roots and item.seeds:
            for earlier in self._alike[item.step, item.roots]:
                self._pair(earlier, item)
            self._alike[item.step, item.roots].append(item)

    def _pair(self, first: FlowPass, second: FlowPass) -> None:
        if first.gives is second.gives or len(self.pairs) >= MOST:
            return
        giving = first if first.gives else second
        tensors = [reference() for reference in giving.leaves]
        gradients = tuple(
            storage_key(tensor.grad) if tensor is not None and tensor.grad is not None else None
            for tensor in tensors
        )
        self.pairs.append(PassPair(first, second, gradients))


def _leaf(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad


def _identities(tensors: Sequence[Any]) -> tuple[Identity, ...]:
    """Empty: one of them is no tensor with a storage."""
    identities = []
    for tensor in tensors:
        key = storage_key(tensor) if isinstance(tensor, torch.Tensor) else None
        if key is None:
            return ()
        identities.append((id(tensor), key, tensor._version))
    return tuple(identities)
