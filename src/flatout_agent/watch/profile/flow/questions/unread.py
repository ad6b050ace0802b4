"""Calls and operators whose results are never read, named by the outermost futile call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.reading import (
    GRADIENTS,
    flops_share,
    grad_call,
    with_sources,
)
from flatout_agent.watch.profile.flow.records import FlowCall, Stack

LEAST = 0.01
"""Share of the step's operators, by time or by operations, below which nothing is reported."""
MOST = 8
"""The most rows reported."""


def unread(flow: Flow, live: Collection[int], operators_s: float) -> tuple[wire.UnreadSeen, ...]:
    """The unread results of the first step; results that the second step takes are read, and
    existing ones may still be.

    live: operators whose result is read, or may still be read.
    """
    stacks = _stacks(flow, live)
    # Stacks of the user's lines, innermost first, below which nothing is read.
    below: dict[Stack, bool] = {}
    for index, chain in stacks.items():
        below[chain] = below.get(chain, False) or index in live
    reads: dict[Stack, bool] = {}
    for chain, read in below.items():
        for at in range(len(chain)):
            reads[chain[at:]] = reads.get(chain[at:], False) or read
    futile = {stack for stack, read in reads.items() if not read}
    # The outermost calls of modules whose results are never read.
    dead_calls: list[FlowCall] = []
    for call in flow.calls:
        nested = dead_calls and dead_calls[-1].begin <= call.begin < dead_calls[-1].end
        if call.step or call.end <= call.begin or nested or call.where is None:
            continue
        own = [index for index in range(call.begin, call.end) if not flow.nodes[index].counter]
        if own and not any(index in live for index in own) and not flow.nodes[own[0]].backward:
            dead_calls.append(call)
    inside = {index for call in dead_calls for index in range(call.begin, call.end)}
    groups: dict[tuple[Stack, str], list[FlowCall]] = defaultdict(list)
    for call in dead_calls:  # by the outermost line that calls them for nothing, or by module
        at = _outermost(call.chain, futile)
        groups[call.chain[at:], call.kind if at == 0 else ""].append(call)
    rows = [_called(flow, calls, futile, stacks) for calls in groups.values()]
    told = {row.where for row in rows}
    inside = with_sources(flow.nodes, inside)
    outside = {
        index: stack
        for index, stack in stacks.items()
        if index not in live and index not in inside and "empty" not in flow.nodes[index].name
    }
    rows += [row for row in _lines(flow, outside, futile) if row.where not in told]
    worth = [row for row in rows if row.s >= LEAST * operators_s or row.flops >= LEAST]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _stacks(flow: Flow, live: Collection[int]) -> dict[int, Stack]:
    """For each operator of the first step's own code, the user's lines, innermost first.

    Included are operators that a call of torch.autograd.grad runs, if nothing that it computes is
    read; they get the lines of that call.
    """
    stacks = {
        index: node.chain
        for index, node in enumerate(flow.nodes)
        if not (node.step or node.backward or node.loader or node.counter)
    }
    computed: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(flow.nodes):
        if not node.step and (number := grad_call(flow, node)) >= 0:
            computed[number].append(index)
    for number, indexes in computed.items():
        if not any(index in live for index in indexes):
            stacks |= dict.fromkeys(indexes, flow.passes[number].chain)
    return {index: stack for index, stack in sorted(stacks.items()) if stack}


def _outermost(stack: Stack, futile: Collection[Stack]) -> int:
    """Position in a stack of the outermost line below which nothing is read; 0 is its own line."""
    at = 0
    while at + 1 < len(stack) and stack[at + 1 :] in futile:
        at += 1
    return at


def _called(
    flow: Flow,
    calls: Sequence[FlowCall],
    futile: Collection[Stack],
    stacks: Mapping[int, Stack],
) -> wire.UnreadSeen:
    """The report on calls with the same outermost line."""
    first = calls[0]
    at = _outermost(first.chain, futile)
    outer = first.chain[at:]
    nodes = [
        flow.nodes[index]
        for index, stack in stacks.items()
        if (
            stack[-len(outer) :] == outer
            if at
            else any(call.begin <= index < call.end for call in calls)
        )
    ]
    functions = [line.function for line in reversed(first.chain[:at])]
    called = next((name for name in functions if not name.startswith("<")), "")
    return wire.UnreadSeen(
        what=f"{called or first.kind}()",
        where=str(outer[0]),
        calls=min(Counter((call.where, call.module) for call in calls).values())
        if at
        else len(calls),
        s=sum(node.s for node in nodes),
        flops=flops_share(flow, nodes),
        module=first.kind if called else "",
    )


def _lines(
    flow: Flow, stacks: Mapping[int, Stack], futile: Collection[Stack]
) -> list[wire.UnreadSeen]:
    """Unread operators, by the user's outermost such line.

    Calls of torch.autograd.grad are grouped by function, as those for x and y of one Laplacian.
    """
    outer = {index: stack[_outermost(stack, futile) :] for index, stack in stacks.items()}
    gradients = {stack for index, stack in outer.items() if grad_call(flow, flow.nodes[index]) >= 0}
    groups: dict[object, list[int]] = defaultdict(list)
    for index, stack in outer.items():
        function = (stack[0].file, stack[0].function, *stack[1:])
        groups[function if stack in gradients else str(stack[0])].append(index)
    return [_line(flow, indexes, outer) for indexes in groups.values()]


def _line(flow: Flow, indexes: Sequence[int], outer: Mapping[int, Stack]) -> wire.UnreadSeen:
    """The report on these operators; `where` is the line with most of their time."""
    nodes = [flow.nodes[index] for index in indexes]
    spent: dict[str, float] = defaultdict(float)
    by_name: dict[str, float] = defaultdict(float)
    for index in indexes:
        node = flow.nodes[index]
        spent[str(outer[index][0])] += node.s
        by_name[node.name.partition(".")[2] or node.name] += node.s
    costliest = sorted(by_name, key=lambda name: -by_name[name])[:3]
    calls = {number for node in nodes if (number := grad_call(flow, node)) >= 0}
    return wire.UnreadSeen(
        what=GRADIENTS if calls else ", ".join(costliest),
        where=max(spent, key=lambda where: spent[where]),
        calls=max(len(calls), 1),
        s=sum(node.s for node in nodes),
        flops=flops_share(flow, nodes),
    )
