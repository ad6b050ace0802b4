"""What the data flow of two steps shows: results nobody reads, constants made anew, float64."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

import torch

from flatout_agent import wire
from flatout_agent.watch.profile.flow import Flow, FlowCall, FlowConstant, FlowNode
from flatout_agent.watch.profile.flow_beside import beside

LEAST = 0.01
"""Share of the step's operators, by time or by their operations, below which nothing is told."""
LARGE = 16 << 10
"""Bytes of constants that are told whatever their operators take: Python may take longer."""
SLIGHT = 0.05
"""Share of the costliest source of float64 below which another is not told."""
MOST = 8
"""Rows of each kind."""


def results(flow: Flow) -> wire.FlowSeen | None:
    """None: the flow is not known to be whole. What compares two steps is left out after one."""
    if not flow.going:
        return None
    first = [node for node in flow.nodes if node.step == 0]
    operators_s = sum(node.s for node in first)
    both = flow.steps >= 2
    entries = sorted(flow.entries, key=lambda entry: -entry.s)
    most_s = entries[0].s if entries else 0.0
    rows, lines = beside(flow, _live(flow)) if both else ((), ())
    return wire.FlowSeen(
        steps=flow.steps,
        operators=len(first),
        operators_s=operators_s,
        unread=unread(flow, operators_s) if both else (),
        constants=constants(flow, operators_s) if both else (),
        doubles=tuple(
            wire.DoubleSeen(entry.what, entry.where, entry.part, entry.operators, entry.s)
            for entry in entries[:MOST]
            if entry.operators and entry.s >= SLIGHT * most_s
        ),
        default_double=torch.get_default_dtype() is torch.float64,
        returns=returns(flow),
        beside=rows,
        training=lines,
    )


def unread(flow: Flow, operators_s: float) -> tuple[wire.UnreadSeen, ...]:
    """Of the first step; what the second one takes is read, and what is still there may be."""
    live = _live(flow)
    flops = sum(node.flops for node in flow.nodes if node.step == 0)
    dead_calls = _dead_calls(flow, live)
    inside = {index for call in dead_calls for index in range(call.begin, call.end)}
    inside = _with_sources(flow, inside)
    rows: list[wire.UnreadSeen] = []
    for where, calls in _grouped(dead_calls):
        nodes = [node for call in calls for node in flow.nodes[call.begin : call.end]]
        same = [_same_input(flow, call, live) for call in calls]
        rows.append(
            wire.UnreadSeen(
                what=f"{calls[0].kind}()",
                where=where,
                calls=len(calls),
                s=sum(node.s for node in nodes),
                flops=sum(node.flops for node in nodes) / flops if flops else 0.0,
                root=calls[0].root,
                gradients=calls[0].gradients,
                same_input=all(call is not None for call in same),
                first_where=next((call.where for call in same if call is not None), None),
            )
        )
    told = {row.where for row in rows}
    rows += [row for row in _dead_lines(flow, live, inside) if row.where not in told]
    return _worth(rows, operators_s)


def _worth(rows: Iterable[wire.UnreadSeen], operators_s: float) -> tuple[wire.UnreadSeen, ...]:
    worth = [row for row in rows if row.s >= LEAST * operators_s or row.flops >= LEAST]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _live(flow: Flow) -> set[int]:
    """Operators whose result somebody reads, or may read yet."""
    waiting = [
        index
        for index, node in enumerate(flow.nodes)
        if node.step > 0 or node.read or _kept(node, index)
    ]
    return _with_sources(flow, waiting)


def _with_sources(flow: Flow, indexes: Collection[int]) -> set[int]:
    """These operators, and all that made what they take."""
    reached, waiting = set(indexes), list(indexes)
    while waiting:
        for dep in flow.nodes[waiting.pop()].deps:
            if dep not in reached:
                reached.add(dep)
                waiting.append(dep)
    return reached


def _kept(node: FlowNode, index: int) -> bool:
    """Whether its result is still in memory."""
    return any(state.node == index and not state.outside and state.alive for state in node.made)


def _dead_calls(flow: Flow, live: Collection[int]) -> list[FlowCall]:
    """The outermost calls of modules of which nothing is read."""
    dead: list[FlowCall] = []
    for call in flow.calls:
        inside = dead and dead[-1].begin <= call.begin < dead[-1].end
        if call.step or call.end <= call.begin or inside or call.where is None:
            continue
        own = [index for index in range(call.begin, call.end) if not flow.nodes[index].counter]
        if own and not any(index in live for index in own) and not flow.nodes[own[0]].backward:
            dead.append(call)
    return dead


def _grouped(calls: Iterable[FlowCall]) -> list[tuple[str | None, list[FlowCall]]]:
    groups: dict[tuple[str | None, str], list[FlowCall]] = defaultdict(list)
    for call in calls:
        groups[call.where, call.kind].append(call)
    return [(where, group) for (where, _), group in groups.items()]


def _same_input(flow: Flow, dead: FlowCall, live: Collection[int]) -> FlowCall | None:
    """A call of the same module on the same tensors that is read; None: there is none."""
    taken = _inputs(flow, dead)
    for call in flow.calls:
        if call is dead or call.module != dead.module or call.step or call.end <= call.begin:
            continue
        if any(index in live for index in range(call.begin, call.end)) and (
            taken <= _inputs(flow, call)
        ):
            return call
    return None


def _inputs(flow: Flow, call: FlowCall) -> set[tuple[int, int]]:
    """Storages and their versions that a call takes from outside of it."""
    nodes = flow.nodes[call.begin : call.end]
    own = {state.ref.cdata for node in nodes for state in node.made}
    return {read for node in nodes for read in node.reads if read[0] not in own}


def _dead_lines(
    flow: Flow, live: Collection[int], inside: Collection[int]
) -> list[wire.UnreadSeen]:
    """Operators outside of such calls that are not read, by the user's line."""
    groups: dict[str, list[FlowNode]] = defaultdict(list)
    for index, node in enumerate(flow.nodes):
        if node.step or node.backward or node.loader or node.counter or node.where is None:
            continue
        if index not in live and index not in inside and "empty" not in node.name:
            groups[node.where].append(node)
    flops = sum(node.flops for node in flow.nodes if node.step == 0)
    return [
        wire.UnreadSeen(
            what=_names(nodes),
            where=where,
            calls=1,
            s=sum(node.s for node in nodes),
            flops=sum(node.flops for node in nodes) / flops if flops else 0.0,
        )
        for where, nodes in groups.items()
    ]


def constants(flow: Flow, operators_s: float) -> tuple[wire.ConstantSeen, ...]:
    """Made in both steps by the same lines with the same result, by the last line of each."""
    first = [constant for constant in flow.constants if constant.step == 0]
    again = Counter(_identity(flow, constant) for constant in flow.constants if constant.step == 1)
    groups: dict[str, list[FlowConstant]] = defaultdict(list)
    for constant in first:
        identity = _identity(flow, constant)
        where = _last_line(flow, constant.node)
        if again[identity] and where is not None:
            again[identity] -= 1
            groups[where].append(constant)
    rows = [_constant(flow, where, group) for where, group in groups.items()]
    worth = [row for row in rows if row.s >= LEAST * operators_s / 4 or row.bytes >= LARGE]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _identity(flow: Flow, constant: FlowConstant) -> tuple[object, ...]:
    node = flow.nodes[constant.node]
    return (node.name, node.where, constant.shape, constant.dtype, constant.digest)


def _constant(flow: Flow, where: str, group: Sequence[FlowConstant]) -> wire.ConstantSeen:
    chain = sorted({index for constant in group for index in _chain(flow, constant.node)})
    nodes = [flow.nodes[index] for index in chain]
    largest = max(group, key=lambda constant: constant.bytes)
    return wire.ConstantSeen(
        where=where,
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


def _names(nodes: Iterable[FlowNode]) -> str:
    """The costliest operators, as in mm, softmax."""
    spent: dict[str, float] = defaultdict(float)
    for node in nodes:
        spent[node.name.partition(".")[2] or node.name] += node.s
    return ", ".join(sorted(spent, key=lambda name: -spent[name])[:3])
