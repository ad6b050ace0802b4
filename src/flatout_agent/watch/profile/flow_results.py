"""What the data flow of two steps shows: results nobody reads, constants made anew, float64."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.watch.profile.flow import (
    FROM_NOTHING,
    Flow,
    FlowCall,
    FlowConstant,
    FlowLine,
    FlowNode,
)
from flatout_agent.watch.profile.flow_beside import beside
from flatout_agent.watch.profile.flow_gradients import WeightLooks, unused_gradients
from flatout_agent.watch.profile.flow_growing import growing
from flatout_agent.watch.profile.flow_inputs import padding, recomputed
from flatout_agent.watch.profile.flow_loops import repeats
from flatout_agent.watch.profile.flow_matrix_rows import matrices
from flatout_agent.watch.profile.flow_unread import unread, with_sources
from flatout_agent.watch.profile.flow_value_rows import embeddings, ignored, zeros

LEAST = 0.01
"""Share of the step's operators, by time or by their operations, below which nothing is told."""
LARGE = 16 << 10
"""Bytes of constants that are told whatever their operators take: Python may take longer."""
SLIGHT = 0.05
"""Share of the costliest source of float64 below which another is not told."""
MOST = 8
"""Rows of each kind."""
INITIAL = FROM_NOTHING | {
    f"aten.{name}" for name in ("zeros", "ones", "full", "empty", "fill_", "zero_", "empty_strided")
}
"""They make values to begin with, for one pass over memory: no work to keep the result of."""


def results(
    flow: Flow,
    training: Collection[FlowLine] = (),
    weights: WeightLooks | None = None,
    by_hand: bool = False,
) -> wire.FlowSeen | None:
    """None: the flow is not known to be whole. What compares two steps is left out after one, and
    what asks for what becomes of a value where unseen code takes some.

    training: the lines on the stack while `backward` runs, where they are known. weights: what they
    were some steps before. by_hand: no optimizer changes them.
    """
    if not flow.going:
        return None
    first = [node for node in flow.nodes if node.step == 0]
    operators_s = sum(node.s for node in first)
    whole = not flow.unseen
    both = flow.steps >= 2 and whole and flow.modelled
    live = _live(flow) if both else set()
    rows, lines = beside(flow, live) if both else ((), ())
    return wire.FlowSeen(
        steps=flow.steps,
        operators=len(first),
        operators_s=operators_s,
        unread=unread(flow, live, operators_s) if both else (),
        constants=constants(flow, operators_s) if both else (),
        doubles=doubles(flow),
        default_double=torch.get_default_dtype() is torch.float64,
        returns=returns(flow),
        repeats=repeats(flow, training) if whole and flow.modelled else (),
        growing=growing(flow),
        beside=rows,
        training=lines,
        gradients=None if by_hand or not flow.modelled else unused_gradients(flow, weights),
        **_noted(flow),
    )


def _noted(flow: Flow) -> dict[str, Any]:
    """What was noted beside the flow: fields of FlowSeen."""
    steps = max(1, flow.steps)
    return {
        **matrices(flow),
        "zeros": zeros(flow),
        "embeddings": embeddings(flow),
        "ignored": ignored(flow) if not flow.unseen else (),
        "recomputed": recomputed(flow),
        "padding": padding(flow),
        "batches": flow.notes.batches / steps,
        "training_calls": flow.notes.training_calls / steps,
    }


def doubles(flow: Flow) -> tuple[wire.DoubleSeen, ...]:
    """Where float64 comes in, the costliest first."""
    entries = sorted(flow.entries, key=lambda entry: -entry.s)
    most_s = entries[0].s if entries else 0.0
    return tuple(
        wire.DoubleSeen(entry.what, entry.where, entry.part, entry.operators, entry.s)
        for entry in entries[:MOST]
        if entry.operators and entry.s >= SLIGHT * most_s
    )


def _live(flow: Flow) -> set[int]:
    """Operators whose result somebody reads, or may read yet."""
    waiting = [
        index
        for index, node in enumerate(flow.nodes)
        if node.step > 0 or node.read or _kept(node, index)
    ]
    return with_sources(flow, waiting)


def _kept(node: FlowNode, index: int) -> bool:
    """Whether its result is still in memory."""
    return any(state.node == index and not state.outside and state.alive for state in node.made)


def constants(flow: Flow, operators_s: float) -> tuple[wire.ConstantSeen, ...]:
    """Made in both steps by the same lines with the same result, by the last line of each."""
    varying = _varying(flow)
    first = [
        constant
        for constant in flow.constants
        if constant.step == 0 and not constant.changed and not _general(flow, constant, varying)
    ]
    again = Counter(
        _identity(flow, constant)
        for constant in flow.constants
        if constant.step == 1 == flow.nodes[constant.node].step
    )
    groups: dict[str, list[FlowConstant]] = defaultdict(list)
    for constant in first:
        identity = _identity(flow, constant)
        where = _last_line(flow, constant.node)
        if again[identity] and where is not None and not _initial(flow, constant):
            again[identity] -= 1
            groups[where].append(constant)
    rows = [_constant(flow, where, group) for where, group in groups.items()]
    worth = [row for row in rows if row.s >= LEAST * operators_s / 4 or row.bytes >= LARGE]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _initial(flow: Flow, constant: FlowConstant) -> bool:
    """Whether it is only filled with a number."""
    return all(flow.nodes[index].name in INITIAL for index in _chain(flow, constant.node))


def _varying(flow: Flow) -> dict[tuple[str | None, str], list[int]]:
    """Operators of the first step that make what changes, by their line and name."""
    varying: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    for index, node in enumerate(flow.nodes):
        if not (node.step or node.constant or node.backward):
            varying[node.where, node.name].append(index)
    return varying


def _general(
    flow: Flow, constant: FlowConstant, varying: Mapping[tuple[str | None, str], Sequence[int]]
) -> bool:
    """Whether its line works on what changes in another call of a module: a layer on its input."""
    node = flow.nodes[constant.node]
    own = _innermost(flow, constant.node)
    alike = varying.get((node.where, node.name), ())
    return any(_innermost(flow, index) != own for index in alike)


def _innermost(flow: Flow, index: int) -> FlowCall | None:
    """The call of a module in which an operator ran."""
    around = [call for call in flow.calls if call.begin <= index < call.end]
    return around[-1] if around else None


def _identity(flow: Flow, constant: FlowConstant) -> tuple[object, ...]:
    node = flow.nodes[constant.node]
    return (node.name, node.where, constant.shape, constant.dtype, constant.digest)


def _constant(flow: Flow, where: str, group: Sequence[FlowConstant]) -> wire.ConstantSeen:
    chain = sorted({index for constant in group for index in _chain(flow, constant.node)})
    nodes = [flow.nodes[index] for index in chain]
    largest = max(group, key=lambda constant: constant.bytes)
    spent: dict[str, float] = defaultdict(float)
    for node in nodes:
        spent[node.where or where] += node.s
    return wire.ConstantSeen(
        where=max(reversed(spent), key=lambda line: spent[line]),
        lines=tuple(dict.fromkeys(node.where for node in nodes if node.where is not None)),
        operators=tuple(dict.fromkeys(node.name for node in nodes)),
        calls=len(group),
        shape="x".join(map(str, largest.shape)),
        dtype=largest.dtype,
        bytes=sum(constant.bytes for constant in group),
        s=sum(node.s for node in nodes),
        compared=all(constant.compared for constant in group),
    )


def _chain(flow: Flow, last: int) -> set[int]:
    """All operators that a constant is made by."""
    chain, waiting = {last}, [last]
    while waiting:
        for source in flow.nodes[waiting.pop()].sources:
            if source not in chain and flow.nodes[source].step == flow.nodes[last].step:
                chain.add(source)
                waiting.append(source)
    return chain


def _last_line(flow: Flow, last: int) -> str | None:
    lines = (flow.nodes[index].where for index in sorted(_chain(flow, last), reverse=True))
    return next((line for line in lines if line is not None), None)


def returns(flow: Flow) -> tuple[wire.ReturnSeen, ...]:
    """Values that left the device and came back, by their two lines."""
    groups: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for item in flow.returns:
        if item.step == 0:
            groups[item.left, item.back].append(item.bytes)
    rows = [
        wire.ReturnSeen(left, back, len(sizes), sum(sizes))
        for (left, back), sizes in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes)[:MOST])
