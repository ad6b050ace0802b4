"""Tensors that `torch.cat` grows by a part at a time: each call copies all that was there before.

Calls on one line form a chain where each takes the whole result of the one before. Within a step
only chains are told whose results nothing but the next call reads: the parts could be collected in
a list. A list does not serve what a layer reads at each length, as in a DenseNet or a cache of
keys, and a tensor that is written in place has no gradient there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from flatout_agent import wire
from flatout_agent.watch.profile.flow import Flow, FlowNode

CONCATENATES = "aten.cat"
MANY = 8
"""Calls in a chain of one step, at least."""
GROWN = 0.75
"""Share of what grows from step to step that is there before: it has grown for a while."""
LEAST = 0.001
"""Share of the step's operators below which a line is not told: what is recorded decides."""
MOST = 8
"""Rows."""


def growing(flow: Flow) -> tuple[wire.GrownSeen, ...]:
    """By the line that concatenates, the costliest first."""
    before = _before(flow)
    rows = {row.where: row for row in (*_across_steps(flow, before), *_within_step(flow, before))}
    least_s = LEAST * sum(node.s for node in flow.nodes if node.step == 0)
    worth = [row for row in rows.values() if row.s >= least_s]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _before(flow: Flow) -> dict[int, int]:
    """Concatenation -> the one on the same line whose whole result it takes, and adds to."""
    before: dict[int, int] = {}
    for index, node in enumerate(flow.nodes):
        if node.name != CONCATENATES or node.backward or node.where is None:
            continue
        for dep in node.deps:
            other = flow.nodes[dep]
            if (
                (other.name, other.where) == (node.name, node.where)
                and _numbers(other) in {shape.numel() for shape in node.shapes}
                and _numbers(other) < _numbers(node)
            ):
                before[index] = dep
    return before


def _numbers(node: FlowNode) -> int:
    """In the result of a concatenation."""
    return sum(shape.numel() for shape in node.shapes)


def _within_step(flow: Flow, before: dict[int, int]) -> Iterator[wire.GrownSeen]:
    """Of the first step."""
    read = _read(flow, before)
    lines: dict[str | None, list[list[int]]] = defaultdict(list)
    for chain in _chains(flow, before):
        if len(chain) >= MANY and read.isdisjoint(chain[:-1]):
            lines[flow.nodes[chain[0]].where].append(chain)
    for where, chains in lines.items():
        nodes = [flow.nodes[index] for chain in chains for index in chain]
        ends = [_numbers(flow.nodes[chain[-1]]) for chain in chains]
        yield wire.GrownSeen(
            where=where or "",
            calls=len(nodes),
            largest=max(ends),
            spared=1 - sum(ends) / sum(map(_numbers, nodes)),
            s=sum(node.s for node in nodes),
        )


def _chains(flow: Flow, before: dict[int, int]) -> list[list[int]]:
    """Concatenations of the first step, each of which takes what the one before has made."""
    ending: dict[int, list[int]] = {}
    for index, node in enumerate(flow.nodes):
        if node.step == 0 and index in before:
            dep = before[index]
            ending[index] = [*ending.pop(dep, [dep]), index]
    return list(ending.values())


def _read(flow: Flow, before: dict[int, int]) -> set[int]:
    """Concatenations whose result something else takes than the next one, or that are kept."""
    read = {
        index
        for index in before.values()
        if flow.nodes[index].read or _kept(flow.nodes[index], index)
    }
    for index, node in enumerate(flow.nodes):
        read |= {dep for dep in node.deps if before.get(index) != dep}
    return read


def _kept(node: FlowNode, index: int) -> bool:
    """Whether its result is still in memory."""
    return any(state.node == index and state.alive for state in node.made)


def _across_steps(flow: Flow, before: dict[int, int]) -> Iterator[wire.GrownSeen]:
    """What the second step concatenates to what the first one has concatenated."""
    lines: dict[str | None, list[int]] = defaultdict(list)
    for index, dep in before.items():
        node, other = flow.nodes[index], flow.nodes[dep]
        if (other.step, node.step) == (0, 1) and _numbers(other) >= GROWN * _numbers(node):
            lines[node.where].append(_numbers(other))
    for where, sizes in lines.items():
        calls = [node for node in flow.nodes if (node.name, node.where) == (CONCATENATES, where)]
        first = [node for node in calls if node.step == 0]
        yield wire.GrownSeen(
            where=where or "",
            calls=len(first),
            largest=max(sizes),
            spared=sum(sizes) / sum(_numbers(node) for node in calls if node.step == 1),
            across=True,
            s=sum(node.s for node in first),
        )
