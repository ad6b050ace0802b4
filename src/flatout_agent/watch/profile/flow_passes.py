"""The backward passes of the counted steps: what each differentiates, and what becomes of that.

Of `create_graph=True` hooks on the nodes of the gradients tell whether a later pass goes through
them, and marks on the same nodes whether these still exist: both live as long as the graph does.
No tensor is kept alive.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent.watch import places
from flatout_agent.watch.profile.storages import storage_key

if TYPE_CHECKING:
    from flatout_agent.watch.profile.flow import FlowLine

KEY = "flatout pass"
MOST = 1024
"""Passes that are noted; of more nothing is told."""
MOST_NODES = 8192
"""Nodes of gradients that are watched."""
CALLERS = ("/torch/autograd/__init__.py", "/torch/_tensor.py")
"""Of torch's own: they lie between the user's line and the pass."""
UNKNOWN: tuple[Any, ...] = ((), (), None, False, ())
"""In place of arguments that the engine is not given by position."""
Identity = tuple[int, int, int]
"""Of a tensor that lives: its object, its storage, its version."""


class _PassMark:
    """Dies with the node whose metadata holds it."""


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
    direct: bool
    """The user's line itself calls it, not a library."""
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
    visited: bool = False
    """A later pass goes through its gradients."""
    marks: list[weakref.ref[_PassMark]] = field(default_factory=list)
    unmarked: bool = False
    """Some of its gradients are not watched."""

    @property
    def where(self) -> str | None:
        """file:line of the user's that calls it."""
        line = self.chain[0] if self.chain else None
        return f"{places.display(line.file)}:{line.number}" if line is not None else None

    @property
    def alive(self) -> bool:
        """Whether the graph of a gradient of it still exists."""
        return any(mark() is not None for mark in self.marks)


@dataclass(slots=True)
class PassPair:
    """Two passes of a step over the same: one gives gradients, the other leaves them in `.grad`."""

    first: FlowPass
    second: FlowPass
    gradients: tuple[int | None, ...] = ()
    """Storages of `.grad` of the inputs of the one that gives gradients, after both."""


class FlowPasses:
    """Of the counted steps, in the order in which they begin."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        self.passes: list[FlowPass] = []
        self.pairs: list[PassPair] = []
        self.overflow = False
        self._models = [weakref.ref(model) for model in models]
        self._open: list[FlowPass] = []
        self._alike: dict[tuple[int, tuple[Identity, ...]], list[FlowPass]] = defaultdict(list)
        self._handles: list[Any] = []

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
                _direct(sys._getframe(1)),
                _identities(outputs),
                tuple(map(maker, known)) if len(known) == len(seeds) else (),
                _identities(inputs),
                tuple(map(weakref.ref, given)) if leaves else (),
            )
        )

    def ends(self, result: Any, at: int, failed: bool) -> None:
        """It has returned this, or raised an error. at: the number of the next operator."""
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
        if item.create_graph:
            self._watch(item, result if item.gives else self._gradients())
        if item.roots and item.seeds:
            for earlier in self._alike[item.step, item.roots]:
                self._pair(earlier, item)
            self._alike[item.step, item.roots].append(item)

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

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

    def _watch(self, item: FlowPass, gradients: Iterable[Any]) -> None:
        nodes = {
            id(tensor.grad_fn): tensor.grad_fn
            for tensor in gradients
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None
        }
        item.unmarked = len(self._handles) + len(nodes) > MOST_NODES
        for node in nodes.values() if not item.unmarked else ():
            mark = _PassMark()
            metadata: Any = node.metadata  # a property, to torch's types a method
            metadata[KEY] = mark
            item.marks.append(weakref.ref(mark))
            self._handles.append(node.register_prehook(_visiting(item)))

    def _gradients(self) -> Iterator[torch.Tensor]:
        for reference in self._models:
            model = reference()
            for weight in model.parameters() if model is not None else ():
                if weight.grad is not None:
                    yield weight.grad


def _visiting(item: FlowPass) -> Callable[[Any], None]:
    def hook(gradients: Any) -> None:
        item.visited = True

    return hook


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


def _direct(frame: FrameType | None) -> bool:
    """Whether the user's code calls, with nothing of a library between."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(places.AGENT) and not file.replace("\\", "/").endswith(CALLERS):
            return places.user_frame(frame) is frame
        frame = frame.f_back
    return False
