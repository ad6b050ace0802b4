"""The steps of a program without an optimizer, which changes its weights with its own code.

A step ends when a training call of the model begins and one of a few watched weights differs from
the last such call: its address, its version, or on a CPU its values (changes through `weight.data`
do not change the version). If no module is called, as with plain tensors, a weight that the loss
was computed from is watched, and a step ends when a backward pass begins.

Counting begins only after several changes have followed backward passes while no optimizer stepped.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flatout_agent.attach.chain import compiled_by_user, model_call
from flatout_agent.attach.replacing import Undo, in_reverse
from flatout_agent.job import Job
from flatout_agent.watch.looks import Look, look, on_cpu, place, values_of
from flatout_agent.watch.profile import compile

CONFIRMED = 3
"""Changes of the weights, each after a backward pass, from which on steps are counted."""
ABSENT = 16
"""Backward passes, or changes of other weights, after which other weights are used for counting."""
LOOKED_AT = 3
"""The number of a model's weights that are watched."""
LEAVES = 8
"""The number of weights known at a time from which losses were computed."""
NODES = 2000
"""The most nodes of a graph that are searched for one."""
ZEROED = 4
"""After this many gradients set to zero, an unchanged weight on an accelerator is copied; after
twice as many, it is compared."""


class _ModelWeights:
    """The few watched weights of one root model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = weakref.ref(model)
        self.changes = 0
        self.backwards = 0
        """Backward passes before the last change."""
        self._owners: list[tuple[weakref.ref[torch.nn.Module], str]] = []
        self._last: Look | None = None
        self._values: Look | None = None
        """Values read if nothing else shows a change."""
        self._gradient: Look | None = None
        self._zeroed = 0
        self._copy: torch.Tensor | None = None
        self._by_gradient = False

    def tensors(self) -> list[torch.Tensor]:
        """The tensors under their names now."""
        owners = ((owner(), name) for owner, name in self._owners)
        named = [(owner._parameters, name) for owner, name in owners if owner is not None]
        # A ScriptModule's parameters are no dict, and have no `get`.
        weights = [parameters[name] for parameters, name in named if name in parameters]
        return [weight for weight in weights if weight is not None]

    def changed(self) -> bool:
        """Whether they have changed since this was last called."""
        weights = self.tensors()
        zeroed = self._zeroed if self._by_gradient else None
        now = (zeroed, *(place(weight) for weight in weights))
        before, self._last = self._last, now
        if before is not None and before != now:
            self._values = None
            return True
        values = tuple(values_of(weight) for weight in weights)
        old, self._values = self._values, values
        return old is not None and old != values

    def backward_begins(self) -> None:
        """On an accelerator values are not read; a gradient set to zero shows that they were used.

        Whether the weight then changes, although its memory and version do not, is checked once.
        """
        weight = next(iter(self.tensors()), None)
        if weight is None or on_cpu(weight) or self._gradient is None:
            return
        if _gradient(weight) == self._gradient:
            return
        self._zeroed += 1
        if self.changes or self._by_gradient:
            return
        if self._zeroed == ZEROED:
            self._copy = weight.detach().clone()
        elif self._zeroed == 2 * ZEROED and self._copy is not None:
            self._by_gradient = not torch.equal(self._copy, weight.detach())
            self._copy = None

    def backward_ended(self) -> None:
        """Gradients exist: choose the weights that have one."""
        model = self.model()
        if not self._owners and model is not None:
            self._owners = _chosen(model)
            self.changed()
        weight = next(iter(self.tensors()), None)
        if weight is not None and not on_cpu(weight):
            self._gradient = _gradient(weight)


class _Leaf:
    """One weight that losses are computed from; the last one if it is rebuilt each time."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.changes = 0
        self.put(weight)

    def put(self, weight: torch.Tensor) -> None:
        """Follow this weight from now on."""
        self.weight = weakref.ref(weight)
        self.kind = weight.shape, weight.dtype
        self._last = look(weight)

    def changed(self, weight: torch.Tensor) -> bool:
        """Whether the weight has changed since this was last called."""
        before, self._last = self._last, look(weight)
        return before is not None and before != self._last


class HandUpdates:
    """Counts the steps of a program whose weights no optimizer changes."""

    def __init__(self, job: Job, step: Callable[[], None], start_over: Callable[[], None]) -> None:
        """step: called when a step has ended. start_over: called when one has ended that may not
        belong to training.
        """
        self.job = job
        self._step, self._start_over = step, start_over
        self._models: list[_ModelWeights] = []
        self._leaves: list[_Leaf] = []
        self._lead: _ModelWeights | None = None
        self._lead_leaf: _Leaf | None = None
        self._unhooked = False
        """Whether models are in code that torch.compile traces, so nothing may wrap their calls."""
        self._losses: Any = None
        """The losses whose gradients are about to be computed, while a step ends."""
        self._absent = 0
        self._undo: list[Undo] = []

    def end(self) -> None:
        """Stop watching."""
        in_reverse(self._undo)()
        self._undo, self._models, self._leaves = [], [], []
        self._lead = self._lead_leaf = None

    @property
    def lost(self) -> bool:
        """Whether the model used for counting seems to be no longer in use."""
        return self._lead is not None and (self._lead.model() is None or self._absent >= ABSENT)

    def find_again(self) -> None:
        """Count by whichever model is being trained."""
        in_reverse(self._undo)()
        self._undo, self._models, self._lead, self._absent = [], [], None, 0

    def weights(self) -> list[torch.Tensor]:
        """All trained weights, as far as known; called when a step ends."""
        if self._lead is None:
            return list(leaves(self._losses)) if self._losses is not None else []
        models = [entry.model() for entry in self._models]
        return [p for model in models if model is not None for p in model.parameters()]

    # Models -------------------------------------------------------------------------------------

    def called(self, model: torch.nn.Module) -> None:
        """A root model is about to be called in training."""
        weights = next((entry for entry in self._models if entry.model() is model), None)
        if weights is None:
            self._models.append(weights := _ModelWeights(model))
        if weights is self._lead:
            self._absent = 0
        if not weights.changed():
            return
        if self._lead is not None:
            self._changed_beside(weights)
        elif self.job.backwards > weights.backwards and not self._unhooked:
            weights.backwards = self.job.backwards
            weights.changes += 1
            if weights.changes >= CONFIRMED or self.job.by_hand:
                self._follow(weights, model)
            else:
                self._start_over()

    def _changed_beside(self, weights: _ModelWeights) -> None:
        """The weights of one model, if the steps belong to one."""
        if weights is self._lead:
            self._step()
            return
        self._absent += 1
        if self._absent >= ABSENT:
            self._lead, self._absent = weights, 0

    def _follow(self, weights: _ModelWeights, model: torch.nn.Module) -> None:
        """Count by this model from now on."""
        if compile.in_use() and not _called_from_python(model):
            self._unhooked = True
            return
        self._lead = weights
        for entry in self._models:
            other = entry.model()
            if other is not None:
                self._undo.append(self._stand_before(other))
        self.job.by_hand = True
        self._step()

    def _stand_before(self, model: torch.nn.Module) -> Undo:
        reference = weakref.ref(model)

        def before() -> None:
            model = reference()
            if model is None or not (model.training and torch.is_grad_enabled()):
                return
            if not self.job.inside_backward():
                self.called(model)

        return model_call(model).stand_before(before)

    # Losses -------------------------------------------------------------------------------------

    def backward_begins(self, losses: Any) -> None:
        """Gradients of these are about to be computed."""
        self.job.backwards += 1
        for entry in self._models:
            entry.backward_begins()
        if self._lead is not None:
            self._absent += 1
            return
        if any(entry.changes for entry in self._models) and not self._unhooked:
            return  # steps of the model are about to be counted
        weight = next(leaves(losses), None)
        if weight is not None:
            self._losses = losses
            self._computed_from(weight)
            self._losses = None

    def backward_ended(self) -> None:
        """The gradients exist, and the weights are unchanged."""
        for entry in self._models:
            entry.backward_ended()

    def _computed_from(self, weight: torch.Tensor) -> None:
        leaf = next((leaf for leaf in self._leaves if leaf.weight() is weight), None)
        if leaf is not None:
            changed = leaf.changed(weight)
        else:
            kind = weight.shape, weight.dtype
            gone = (leaf for leaf in self._leaves if leaf.weight() is None and leaf.kind == kind)
            leaf = next(gone, None)
            changed = leaf is not None
            if leaf is None:
                self._leaves = [*self._leaves[1 - LEAVES :], leaf := _Leaf(weight)]
            leaf.put(weight)
        if changed:
            self._leaf_changed(leaf)

    def _leaf_changed(self, leaf: _Leaf) -> None:
        leaf.changes += 1
        if self._lead_leaf is None:
            if leaf.changes < CONFIRMED:
                if leaf is self._leaves[0]:
                    self._start_over()
                return
            self._lead_leaf, self.job.by_hand = leaf, True
        if leaf is self._lead_leaf:
            self._absent = 0
            self._step()
            return
        self._absent += 1
        if self._absent >= ABSENT:
            self._lead_leaf, self._absent = leaf, 0


def leaves(losses: Any) -> Iterator[torch.Tensor]:
    """The weights in the graph of the first of these losses, near ones first."""
    loss = losses if hasattr(losses, "grad_fn") else next(iter(losses), None)
    stack = [getattr(loss, "grad_fn", None)]
    visited: set[Any] = set()
    while stack and len(visited) < NODES:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        weight = getattr(node, "variable", None)
        if isinstance(weight, torch.Tensor):
            yield weight
        stack.extend(reversed([after for after, _ in node.next_functions]))


def _called_from_python(model: torch.nn.Module) -> bool:
    """Whether the model's call is certainly not within code that torch.compile traces."""
    compiled = type(model).__name__ == "OptimizedModule" or compiled_by_user(model)
    return compiled or bool(model_call(model).layers)


def _chosen(model: torch.nn.Module) -> list[tuple[weakref.ref[torch.nn.Module], str]]:
    """The smallest weights that have a gradient or, without any, the smallest of all.

    Embeddings that a forward pass itself rescales are excluded.
    """
    weights = [
        (parameter, module, name)
        for module in model.modules()
        if getattr(module, "max_norm", None) is None
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.requires_grad
    ]
    trained = [entry for entry in weights if entry[0].grad is not None]
    smallest = sorted(trained or weights, key=_elements)[:LOOKED_AT]
    return [(weakref.ref(module), name) for _, module, name in smallest]


def _elements(entry: tuple[torch.Tensor, torch.nn.Module, str]) -> int:
    return entry[0].numel()


def _gradient(weight: torch.Tensor) -> Look | None:
    gradient = weight.grad
    return look(gradient) if gradient is not None else None
