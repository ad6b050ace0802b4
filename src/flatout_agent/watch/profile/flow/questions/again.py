"""Gradients that torch.autograd.grad computes although a `backward` of the same loss leaves them
in `.grad`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.reading import flops_share
from flatout_agent.watch.profile.flow.schemas import CLEARING

LEAST = 0.01
"""Share of the step's operators, by time or by operations, below which nothing is reported."""
ADDING = "aten.add_"
"""The operator that adds a gradient to an existing one."""


def again(flow: Flow, live: Set[int]) -> tuple[wire.AgainSeen, ...]:
    """The lines that do so in both steps, costliest first.

    live: operators whose result is read. Unread results are reported elsewhere.
    """
    later = set(_lines(flow, 1))
    operators_s = sum(node.s for node in flow.nodes if node.step == 0)
    rows = []
    for where, pairs in _lines(flow, 0).items():
        indexes = {index for number, _ in pairs for index in _computed(flow, number)}
        nodes = [flow.nodes[index] for index in sorted(indexes)]
        s, flops = sum(node.s for node in nodes), flops_share(flow, nodes)
        worth = s >= LEAST * operators_s or flops >= LEAST
        if where in later and worth and not indexes.isdisjoint(live):
            backward_where = flow.passes[pairs[0][1]].where
            rows.append(wire.AgainSeen(where, backward_where, len(pairs), s, flops))
    return tuple(sorted(rows, key=lambda row: -row.s))


def _lines(flow: Flow, step: int) -> dict[str, list[tuple[int, int]]]:
    """Line -> its calls of torch.autograd.grad, each with the pass that computes the same."""
    passes = [(number, item) for number, item in enumerate(flow.passes) if item.step == step]
    calls: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, item in passes:
        if not item.gives or item.graph or not item.of_weights or item.where is None:
            continue
        for other, backward in passes:
            same = not backward.gives and item.root >= 0 and backward.root == item.root
            if same and not _accumulates(flow, other):
                calls[item.where].append((number, other))
                break
    return calls


def _computed(flow: Flow, number: int) -> list[int]:
    """The operators of a backward pass."""
    item = flow.passes[number]
    inside = range(item.begin, item.end)
    return [index for index in inside if flow.nodes[index].backward_pass == number]


def _accumulates(flow: Flow, number: int) -> bool:
    """Whether a pass adds to gradients that were there before it and are not zero."""
    for index in _computed(flow, number):
        node = flow.nodes[index]
        before = [dep for dep in node.deps if flow.nodes[dep].backward_pass != number]
        if node.name != ADDING or any(flow.nodes[dep].name in CLEARING for dep in before):
            continue
        if before or any(state.outside for state in node.made):
            return True
    return False
