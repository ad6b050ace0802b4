"""Gradients that a backward pass computes for parameters which nothing ever changes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.watch.looks import look
from flatout_agent.watch.profile.flow import Flow, FlowCall, FlowNode
from flatout_agent.watch.profile.flow_unread import with_sources
from flatout_agent.watch.profile.storages import storage_key

CLEARING = ("aten.zero_", "aten._foreach_zero_", "aten.fill_")
"""They set gradients to zero."""
HALF = 0.5
"""Of a convolution's backward operator, where only one of its two gradients is needed."""


class WeightLooks:
    """What the weights were some steps ago: one that has changed since is trained."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        weights = {id(weight): weight for model in models for weight in model.parameters()}
        self._looks = {
            key: (weakref.ref(weight), look(weight)) for key, weight in weights.items()
        }  # fmt: skip

    def changed(self, weight: torch.Tensor) -> bool:
        """False as well for one that was not known."""
        reference, before = self._looks.get(id(weight), (None, None))
        return reference is not None and reference() is weight and look(weight) != before


def unused_gradients(flow: Flow, before: WeightLooks | None) -> wire.GradientsSeen | None:
    """Of the last step. None: all gradients are of parameters that an optimizer or the program
    changes, or are read.
    """
    modules = [module for reference in flow.notes.modules.values() if (module := reference())]
    idle = _idle(flow, modules, before)
    if not idle or flow.steps < 2:
        return None
    storages = {key for weight in idle.values() if (key := _gradient(weight)) is not None}
    step = flow.steps - 1
    made = {
        index
        for index, node in enumerate(flow.nodes)
        if node.step == step and node.backward and any(_key(s) in storages for s in node.made)
    }
    live = with_sources(flow, _needed(flow, storages))
    wasted = [i for i in with_sources(flow, made) if _of_step(flow.nodes[i], step)]
    weights = {index: 1.0 for index in wasted if index not in live}
    weights |= {i: HALF for i in made & live if flow.nodes[i].name.endswith("convolution_backward")}
    module, call = _named(flow, modules, idle, step)
    flops = sum(node.flops for node in flow.nodes if node.step == step)
    spent_s = sum(flow.nodes[index].s * share for index, share in weights.items())
    spent = sum(flow.nodes[index].flops * share for index, share in weights.items())
    return wire.GradientsSeen(
        what=type(module).__name__ if module is not None else "",
        where=call.where if call is not None else None,
        tensors=len(idle),
        parameters=sum(weight.numel() for weight in idle.values()),
        after_trained=module is None or id(module) in flow.notes.after_trained,
        s=spent_s * _seconds(flow, 0) / (_seconds(flow, step) or 1.0),
        flops=spent / flops if flops else 0.0,
    )


def _seconds(flow: Flow, step: int) -> float:
    """Of all operators of a step; shares are told of the first one's."""
    return sum(node.s for node in flow.nodes if node.step == step)


def _of_step(node: FlowNode, step: int) -> bool:
    return node.backward and node.step == step


def _key(state: Any) -> int:
    return int(state.ref.cdata)


def _idle(
    flow: Flow, modules: Sequence[torch.nn.Module], before: WeightLooks | None
) -> dict[int, torch.Tensor]:
    """Parameters with a gradient which is in no optimizer, and neither changed nor read."""
    weights = {id(weight): weight for module in modules for weight in module.parameters()}
    with_gradient = {
        key: weight
        for key, weight in weights.items()
        if weight.requires_grad and weight.is_leaf and _plain(weight)
    }
    changed, used = changed_storages(flow), _used(flow)
    untouched = {
        key: weight
        for key, weight in with_gradient.items()
        if storage_key(weight) not in changed
        and _gradient(weight) not in used
        and not (before is not None and before.changed(weight))
    }
    if not untouched:
        return {}  # a look at every object of the process takes long
    if _frozen(modules):
        return {}  # its optimizers may be as well, and are not found then
    owned = {id(weight) for optimizer in _optimizers() for weight in _updated(optimizer)}
    shared = {_gradient(weight) for key, weight in weights.items() if key in owned}
    return {
        key: weight
        for key, weight in untouched.items()
        if key not in owned and _gradient(weight) not in shared
    }


def _gradient(weight: torch.Tensor) -> int | None:
    """The storage of its gradient."""
    return storage_key(weight.grad) if weight.grad is not None else None


def _plain(weight: torch.Tensor) -> bool:
    gradient = weight.grad
    return gradient is not None and gradient.layout == torch.strided and not weight.is_sparse


def _optimizers() -> Iterator[Any]:
    """All of the process, those too that have not stepped yet."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.optim.Optimizer):
            yield thing


def _frozen(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether `gc.freeze` has hidden one of these from `gc.get_objects`."""
    hidden = {id(module) for module in modules} if gc.get_freeze_count() else set()
    return bool(hidden) and not hidden <= {
        key for thing in gc.get_objects() if (key := id(thing)) in hidden
    }


def _updated(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def changed_storages(flow: Flow) -> set[int]:
    """Storages that operators outside of backward passes write to."""
    return {_key(state) for node in flow.nodes if not node.backward for state in node.made}


def _used(flow: Flow) -> set[int]:
    """Storages that such operators read or write, if not only to set them to zero."""
    used: set[int] = set()
    for node in flow.nodes:
        if not node.backward and node.name not in CLEARING:
            used |= {key for key, _ in node.reads}
            used |= {_key(state) for state in node.made}
    return used


def _needed(flow: Flow, storages: Collection[int]) -> list[int]:
    """Operators with a result that somebody needs, other than such a gradient."""
    needed = []
    for index, node in enumerate(flow.nodes):
        gradient = node.backward and any(_key(state) in storages for state in node.made)
        kept = any(
            state.node == index
            and not state.outside
            and state.alive
            and _key(state) not in storages
            for state in node.made
        )
        if kept or (node.read and not gradient):
            needed.append(index)
    return needed


def _named(
    flow: Flow, modules: Iterable[torch.nn.Module], idle: Collection[int], step: int
) -> tuple[torch.nn.Module | None, FlowCall | None]:
    """The largest module that is called and has no other trainable parameters, with its call."""
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
