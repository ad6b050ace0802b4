"""Gradients that a backward pass computes for a part which is trained by another pass.

They are set to zero, or dropped, before anything reads them: the discriminator's step of a GAN
that goes back through the generator, too. Told is a called module of which nothing at all comes of
the pass that goes through it, while another part of the same pass is used. Where a pass must go
through a part, to what lies before it, nothing is told.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from flatout_agent import wire
from flatout_agent.watch.profile.flow import Flow, FlowCall, FlowNode
from flatout_agent.watch.profile.flow_gradients import (
    CLEARING,
    HALF,
    WeightLooks,
    changed_storages,
)
from flatout_agent.watch.profile.flow_passes import FlowPass
from flatout_agent.watch.profile.flow_unread import with_sources
from flatout_agent.watch.profile.storages import storage_key, storage_of

ADDING = "aten.add_"
"""A gradient is added to one that is there."""


@dataclass(frozen=True)
class _Needs:
    """What becomes of each operator's result, followed back from the end of the steps."""

    live: set[int]
    """Operators of which somebody needs something."""
    partly: set[int]
    """Convolutions' backward operators that make a gradient which nobody needs, and one more."""
    reads: dict[int, int]
    """Storage -> the last operator outside of backward passes that reads it."""


def discarded(flow: Flow, before: WeightLooks | None) -> tuple[wire.DiscardedSeen, ...]:
    """Of the first step, the costliest first."""
    needs = _needs(flow)
    changed = changed_storages(flow)
    rows: dict[tuple[str | None, str | None], list[wire.DiscardedSeen]] = {}
    for item in flow.passes.passes:
        if item.step or item.gives or item.failed:
            continue
        row = _row(flow, item, needs, changed, before)
        if row is not None:
            rows.setdefault((row.where, row.backward_where), []).append(row)
    merged = [
        wire.DiscardedSeen(
            what=group[0].what,
            where=where,
            backward_where=backward_where,
            calls=len(group),
            s=sum(row.s for row in group),
            flops=sum(row.flops for row in group),
        )
        for (where, backward_where), group in rows.items()
    ]
    return tuple(sorted(merged, key=lambda row: -row.s))


def _needs(flow: Flow) -> _Needs:
    nodes = flow.nodes
    given = {index for indexes in flow.given.values() for index in indexes}
    sizes = dict(_gradient_sizes(flow))
    needs = _Needs(set(), set(), {})
    wanted = {state.ref.cdata for node in nodes for state in node.made if state.alive}
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        made = {state.ref.cdata for state in node.made}
        adds = node.backward and node.name == ADDING  # to what was there before the two steps
        if wanted.isdisjoint(made) and not (index in given if adds else node.read):
            continue
        needs.live.add(index)
        if node.name.endswith("convolution_backward") and not made <= wanted:
            needs.partly.add(index)
        cleared = _cleared(node, sizes)
        wanted -= cleared
        taken = {key for key, _ in node.reads} - cleared
        wanted |= taken
        for key in taken if not node.backward else ():
            needs.reads.setdefault(key, index)
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


def _cleared(node: FlowNode, sizes: dict[int, int]) -> set[int]:
    """Gradients that an operator sets to zero as a whole."""
    if node.name not in CLEARING:
        return set()
    return {
        key
        for (key, _), shape in zip(node.reads, node.shapes, strict=True)
        if sizes.get(key) == math.prod(shape)
    }


def _row(
    flow: Flow, item: FlowPass, needs: _Needs, changed: Collection[int], before: WeightLooks | None
) -> wire.DiscardedSeen | None:
    """None: each part of the pass is used, or none of it."""
    nodes = flow.nodes
    own = [index for index in range(item.begin, item.end) if nodes[index].backward]
    dead = {index for index in own if index not in needs.live}
    used = any(
        state.ref.cdata in needs.reads for index in own if index not in dead
        for state in nodes[index].made
    )  # fmt: skip
    if not dead or not used:
        return None
    calls = list(_futile(flow, item, own, dead, needs))
    modules = [(call, module) for call in calls if (module := _module(flow, call)) is not None]
    if not modules or not all(_trained(module, changed, before) for _, module in modules):
        return None
    call, module = max(modules, key=lambda pair: sum(w.numel() for w in pair[1].parameters()))
    chain = _chain(flow, own, dead, {i for c in calls for i in _consumers(flow, c, own, needs)})
    weights = dict.fromkeys(chain, 1.0) | dict.fromkeys(_halved(flow, own, chain, needs), HALF)
    flops = sum(node.flops for node in nodes if node.step == 0)
    return wire.DiscardedSeen(
        what=type(module).__name__,
        where=call.where,
        backward_where=item.where,
        s=sum(nodes[index].s * share for index, share in weights.items()),
        flops=sum(nodes[index].flops * share for index, share in weights.items()) / flops
        if flops
        else 0.0,
    )


def _futile(
    flow: Flow, item: FlowPass, own: Collection[int], dead: Collection[int], needs: _Needs
) -> Iterator[FlowCall]:
    """The outermost calls of modules before the pass of which it gives nothing that is needed."""
    end = -1
    for call in flow.calls:
        if call.step or not call.gradients or call.begin < end or call.end > item.begin:
            continue
        consumers = _consumers(flow, call, own, needs)
        if consumers and all(index in dead for index in consumers):
            end = call.end
            yield call


def _consumers(flow: Flow, call: FlowCall, own: Collection[int], needs: _Needs) -> list[int]:
    """Operators of the pass that take what stays inside of a call, or the module's weights.

    What it returns others take, too, for gradients of their own.
    """
    inside = {
        index
        for index in range(call.begin, call.end)
        if not any(needs.reads.get(state.ref.cdata, -1) >= call.end
                   for state in flow.nodes[index].made)
    }  # fmt: skip
    module = _module(flow, call)
    weights = {storage_key(weight) for weight in module.parameters()} if module else set()
    taking = {index for index in own if not inside.isdisjoint(flow.nodes[index].deps)}
    if not taking:
        return []  # the pass goes through another call of the module
    reading = (i for i in own if any(key in weights for key, _ in flow.nodes[i].reads))
    return sorted(taking.union(reading))


def _module(flow: Flow, call: FlowCall) -> torch.nn.Module | None:
    reference = flow.notes.modules.get(call.module)
    return reference() if reference is not None else None


def _trained(module: torch.nn.Module, changed: Collection[int], before: WeightLooks | None) -> bool:
    """Whether it has weights that get gradients, and all of them change."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    return bool(weights) and all(
        storage_key(weight) in changed or (before is not None and before.changed(weight))
        for weight in weights
    )


def _chain(
    flow: Flow, own: Collection[int], dead: Collection[int], consumers: Collection[int]
) -> set[int]:
    """The operators that serve nothing but these: what leads to them, and what follows."""
    chain = with_sources(flow, consumers) & set(dead)
    for index in own:
        if index in dead and not chain.isdisjoint(flow.nodes[index].deps):
            chain.add(index)
    return chain


def _halved(
    flow: Flow, own: Collection[int], chain: Collection[int], needs: _Needs
) -> Iterator[int]:
    """Convolutions' backward operators of which only such ones take one of the gradients."""
    taken = {key for index in chain for key, _ in flow.nodes[index].reads}
    for index in own:
        if index in needs.partly and any(s.ref.cdata in taken for s in flow.nodes[index].made):
            yield index
