"""Derivatives that are computed twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flatout_agent import wire
from flatout_agent.watch.profile.flow import Flow
from flatout_agent.watch.profile.flow_discarded import discarded
from flatout_agent.watch.profile.flow_gradients import WeightLooks
from flatout_agent.watch.profile.flow_passes import FlowPass, PassPair

SEED = "aten.ones_like"
"""The gradient that a backward pass begins with, unless the program gives another."""
ZEROING = ("aten.zero_", "aten._foreach_zero_")


def derivatives(flow: Flow, live: Collection[int], before: WeightLooks | None) -> dict[str, Any]:
    """Fields of FlowSeen; nothing where fewer than two steps were followed.

    live: operators whose result somebody reads. before: what the weights were some steps ago.
    """
    if flow.steps < 2 or flow.passes.overflow:
        return {}
    return {
        "discarded": discarded(flow, before),
        "derived_again": derived_again(flow, live),
    }


def derived_again(flow: Flow, live: Collection[int]) -> tuple[wire.DerivedAgainSeen, ...]:
    """Calls of torch.autograd.grad whose gradients `backward` gives too, in each step.

    live: operators whose result somebody reads; of calls that nobody reads `unread` tells.
    """
    writers = _writers(flow)
    lines: dict[str, list[tuple[FlowPass, FlowPass]]] = defaultdict(list)
    differing: set[str] = set()
    for pair in flow.passes.pairs:
        needless, other = _needless(pair)
        if needless.where is None or other.where is None:
            continue
        read = needless.step or any(index in live for index in _own(flow, needless))
        if read and _same(flow, pair, needless, other, writers):
            lines[needless.where].append((needless, other))
        else:
            differing.add(needless.where)
    rows = [
        _row(flow, where, couples)
        for where, couples in lines.items()
        if where not in differing and {needless.step for needless, _ in couples} == {0, 1}
    ]
    return tuple(sorted(rows, key=lambda row: -row.s))


def _row(
    flow: Flow, where: str, couples: Iterable[tuple[FlowPass, FlowPass]]
) -> wire.DerivedAgainSeen:
    first_step = [couple for couple in couples if couple[0].step == 0]
    needless = {item.number: item for item, _ in first_step}
    s, flops, _ = _spent(flow, needless.values())
    _, other = first_step[0]
    return wire.DerivedAgainSeen(where, other.where or "", len(needless), s, flops)


def _needless(pair: PassPair) -> tuple[FlowPass, FlowPass]:
    """The pass that may go, and the one that stays."""
    first, second = pair.first, pair.second
    return (first, second) if first.gives else (second, first)


def _same(
    flow: Flow,
    pair: PassPair,
    needless: FlowPass,
    other: FlowPass,
    writers: Mapping[int, list[int]],
) -> bool:
    """Whether the other pass gives the same numbers, by the same means."""
    nodes = flow.nodes
    seeds = {nodes[index].name if index >= 0 else "" for index in (*needless.seeds, *other.seeds)}
    if seeds != {SEED} and (needless.seeds != other.seeds or -1 in needless.seeds):
        return False
    if needless.create_graph or not needless.leaves:
        return False
    if other.inputs and not set(needless.inputs) <= set(other.inputs):
        return False
    return all(_fresh(flow, key, other, writers) for key in pair.gradients)


def _fresh(flow: Flow, key: int | None, item: FlowPass, writers: Mapping[int, list[int]]) -> bool:
    """Whether a gradient holds what this pass has computed, and no more."""
    if key is None:
        return False
    before = [index for index in writers.get(key, ()) if index < item.begin]
    within = [index for index in writers.get(key, ()) if item.begin <= index < item.end]
    if not within:
        return False
    if before:
        return flow.nodes[before[-1]].name in ZEROING
    states = (state for state in flow.nodes[within[0]].made if state.ref.cdata == key)
    return not any(state.outside for state in states)


def _writers(flow: Flow) -> dict[int, list[int]]:
    """Of each storage: the operators that make or change it."""
    writers: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(flow.nodes):
        for state in node.made:
            writers[state.ref.cdata].append(index)
    return writers


def _own(flow: Flow, item: FlowPass) -> list[int]:
    return [index for index in range(item.begin, item.end) if flow.nodes[index].backward]


def _spent(flow: Flow, passes: Iterable[FlowPass]) -> tuple[float, float, int]:
    """Seconds of these passes, their share of the step's operations, and their operators."""
    own = {index for item in passes for index in _own(flow, item)}
    flops = sum(node.flops for node in flow.nodes if node.step == 0)
    share = sum(flow.nodes[index].flops for index in own) / flops if flops else 0.0
    return sum(flow.nodes[index].s for index in own), share, len(own)
