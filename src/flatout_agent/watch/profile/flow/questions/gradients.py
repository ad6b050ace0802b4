"""Gradients that a backward pass computes for weights that nothing ever changes."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from flatout_agent import wire
from flatout_agent.watch.looks import look
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.reading import seconds
from flatout_agent.watch.profile.flow.records import FlowCall
from flatout_agent.watch.profile.flow.schemas import CLEARING
from flatout_agent.watch.profile.storages import storage_key, storage_of

ADDING = "aten.add_"
"""Operators that add a gradient to an existing one."""
HALF = 0.5
"""Share of a convolution's backward operator that is wasted if only one of its two gradients is
needed."""


class WeightLooks:
    """Fingerprints of the models' weights when this object is made."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        weights = {id(weight): weight for model in models for weight in model.parameters()}
        self._looks = {
            key: (weakref.ref(weight), look(weight)) for key, weight in weights.items()
        }  # fmt: skip

    def changed(self, weight: torch.Tensor) -> bool:
        """Whether a weight has changed; also False for an unknown one."""
        reference, before = self._looks.get(id(weight), (None, None))
        return reference is not None and reference() is weight and look(weight) != before


@dataclass
class _Needs:
    """The use of each operator's result, followed back from the end of the steps."""

    live: set[int] = field(default_factory=set)
    """Operators with a result that is needed."""
    partly: set[int] = field(default_factory=set)
    """Convolutions' backward operators that make an unneeded gradient besides a needed one."""


def unused_gradients(
    flow: Flow, before: WeightLooks | None, by_hand: bool = False
) -> wire.GradientsSeen | None:
    """The unused gradients, or None if there are none.

    before: fingerprints of the weights some steps ago. by_hand: no optimizer changes them.
    """
    if flow.steps < 2 or by_hand:
        return None
    modules = [module for reference in flow.notes.modules.values() if (module := reference())]
    idle = _idle(flow, modules, before)
    if not idle:
        return None
    step = flow.steps - 1
    needs = _needs(flow, {_gradient(weight) for weight in idle.values()})
    own = [i for i, node in enumerate(flow.nodes) if node.backward and node.step == step]
    # Seconds in these unneeded operators, and their share of the step's operations.
    weights = {index: 1.0 for index in own if index not in needs.live}
    weights |= {index: HALF for index in own if index in needs.partly}
    own_step = flow.nodes[own[0]].step if own else 0
    step_flops = sum(node.flops for node in flow.nodes if node.step == own_step)
    spent = sum(flow.nodes[index].flops * share for index, share in weights.items())
    spent_s = sum(flow.nodes[index].s * share for index, share in weights.items())
    flops = spent / step_flops if step_flops else 0.0
    module, call = _named(flow, modules, idle, step)
    return wire.GradientsSeen(
        what=type(module).__name__ if module is not None else "",
        where=call.where if call is not None else None,
        tensors=len(idle),
        parameters=sum(weight.numel() for weight in idle.values()),
        after_trained=module is None or id(module) in flow.notes.after_trained,
        s=spent_s * seconds(flow.nodes) / (seconds(flow.nodes, step) or 1.0),
        flops=flops,
    )


def _needs(flow: Flow, unwanted: Collection[int | None]) -> _Needs:
    """unwanted: storages of gradients that nobody will read."""
    nodes = flow.nodes
    given = {index for indexes in flow.given.values() for index in indexes}
    sizes = dict(_gradient_sizes(flow))
    needs = _Needs()
    wanted = {state.key for node in nodes for state in node.made if state.alive}
    wanted -= {key for key in unwanted if key is not None}
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        made = {state.key for state in node.made}
        adds = node.backward and node.name == ADDING  # into earlier storages
        if wanted.isdisjoint(made) and not (index in given if adds else node.read):
            continue
        needs.live.add(index)
        if node.name.endswith("convolution_backward") and not made <= wanted:
            needs.partly.add(index)
        cleared: set[int] = set()  # gradients that it sets to zero as a whole
        if node.name in CLEARING:
            shapes = zip(node.reads, node.shapes, strict=True)
            cleared = {key for (key, _), shape in shapes if sizes.get(key) == math.prod(shape)}
        wanted -= cleared
        wanted |= {key for key, _ in node.reads} - cleared
    return needs


def _gradient_sizes(flow: Flow) -> Iterator[tuple[int, int]]:
    """Storages of gradients that fill them, with how many numbers they hold."""
    for reference in flow.notes.modules.values():
        module = reference()
        for weight in module.parameters(recurse=False) if module is not None else ():
            gradient = weight.grad
            key = storage_key(gradient) if gradient is not None else None
            if gradient is None or key is None:
                continue
            if storage_of(gradient).nbytes() == gradient.numel() * gradient.element_size():
                yield key, gradient.numel()


def _idle(
    flow: Flow, modules: Sequence[torch.nn.Module], before: WeightLooks | None
) -> dict[int, torch.Tensor]:
    """Parameters that have a gradient but are in no optimizer, and are neither changed nor read."""
    weights = {id(weight): weight for module in modules for weight in module.parameters()}
    with_gradient = {
        key: weight
        for key, weight in weights.items()
        if weight.requires_grad
        and weight.is_leaf
        and (gradient := weight.grad) is not None
        and gradient.layout == torch.strided
        and not weight.is_sparse
    }
    own = [node for node in flow.nodes if not node.backward]
    changed = {state.key for node in own for state in node.made}
    used: set[int] = set()
    for node in own:
        if node.name not in CLEARING:
            used |= {key for key, _ in node.reads}
            used |= {state.key for state in node.made}
    untouched = {
        key: weight
        for key, weight in with_gradient.items()
        if storage_key(weight) not in changed
        and _gradient(weight) not in used
        and not (before is not None and before.changed(weight))
    }
    if not untouched:
        return {}  # inspecting every object of the process takes long
    # Whether `gc.freeze` has hidden one of these from `gc.get_objects`.
    hidden = {id(module) for module in modules} if gc.get_freeze_count() else set()
    if hidden and not hidden <= {key for thing in gc.get_objects() if (key := id(thing)) in hidden}:
        return {}  # its optimizers may be as well, and are not found then
    owned = {
        id(weight)
        for thing in gc.get_objects()  # also optimizers that have not stepped yet
        if issubclass(type(thing), torch.optim.Optimizer)
        for group in getattr(thing, "param_groups", ())
        for weight in group["params"]
    }
    shared = {_gradient(weight) for key, weight in weights.items() if key in owned}
    return {
        key: weight
        for key, weight in untouched.items()
        if key not in owned and _gradient(weight) not in shared
    }


def _gradient(weight: torch.Tensor) -> int | None:
    """The storage of its gradient."""
    return storage_key(weight.grad) if weight.grad is not None else None


def _named(
    flow: Flow, modules: Iterable[torch.nn.Module], idle: Collection[int], step: int
) -> tuple[torch.nn.Module | None, FlowCall | None]:
    """The largest called module without other trainable parameters, with its call."""
    calls = {call.module: call for call in reversed(flow.calls) if call.step == step}
    best: torch.nn.Module | None = None
    most = 0
    for module in modules:
        trainable = [weight for weight in module.parameters() if weight.requires_grad]
        size = sum(weight.numel() for weight in trainable)
        if not trainable or id(module) not in calls or any(id(w) not in idle for w in trainable):
            continue
        first = best is None or calls[id(module)].begin < calls[id(best)].begin
        if size > most or (size == most and first):
            best, most = module, size
    root = next((call for call in flow.calls if call.root and call.step == step), None)
    return best, calls[id(best)] if best is not None else root
