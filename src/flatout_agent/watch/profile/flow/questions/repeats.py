"""Python loops that call operators one by one although no call needs another's result.

Calls of one operator, on one line and on the same shapes, have levels in the data flow: a call that
depends on another one is one level above it. Layers and time steps, each of which needs the one
before, have different levels; heads, channels and samples share one level and could be one call.
Calls after a backward pass, or after the host has read one of their values, may depend on it.
"""

from __future__ import annotations

import itertools
import linecache
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flatout_agent import wire
from flatout_agent.watch import places
from flatout_agent.watch.profile.ast_loops import AstLoop, loops_around
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.records import FlowLine

MANY = 8
"""The least calls per step that batching would save."""
INDEPENDENT = 0.75
"""The least share of independent calls in a loop, by time; below it, each iteration needs the one
before."""
LEAST = 0.01
"""Share of the step's operators below which a loop is not reported."""
MOST_GROUPS = 48
"""The most groups of equal calls examined, costliest first."""
MOST = 8
"""The most rows reported."""


@dataclass
class _Group:
    """Calls of one operator, on one line and on the same shapes."""

    members: list[int]
    """Nodes, in the order in which they ran."""
    loops: list[AstLoop]
    """Loops around the line or its callers, innermost first."""
    s: float = 0.0
    calls: int = 0
    """Calls from the line, as a torch module may use an operator several times."""
    levels: int = 0
    loop: AstLoop | None = None


def repeats(flow: Flow, training: Collection[FlowLine] = ()) -> tuple[wire.RepeatSeen, ...]:
    """The loops of the first step. training: the lines on the stack while `backward` runs."""
    around = {(line.file, line.number) for line in (*flow.backward_lines, *training)}
    groups = _groups(flow, around)
    if not groups:
        return ()
    # Node -> the call of a module made by the node's own line; nodes in no call are absent.
    units: dict[int, int] = {}
    for number, call in enumerate(flow.calls):
        if call.step or call.where is None:
            continue
        for index in range(call.begin, call.end):
            if flow.nodes[index].where == call.where:
                units.setdefault(index, number)
    by_loop: dict[AstLoop, list[_Group]] = defaultdict(list)
    for group in groups[:MOST_GROUPS]:
        # Calls and levels of a group, and the loop that makes the calls. This is the innermost
        # loop, unless its iterations depend on each other while those of the outer loop do not.
        unit = {index: units.get(index, -1 - index) for index in group.members}
        levels = _levels(flow, group.members, unit)
        of_unit: dict[int, int] = {}
        for index in group.members:
            of_unit[unit[index]] = max(of_unit.get(unit[index], 0), levels[index])
        in_order = list(of_unit.values())
        group.calls, group.levels = len(in_order), len(set(in_order))
        same = sum(one == other for one, other in itertools.pairwise(in_order))
        in_turn = 2 * same < len(in_order) - 1 and group.levels <= (1 - INDEPENDENT) * group.calls
        group.loop = group.loops[min(in_turn, len(group.loops) - 1)]
        if group.loop is not None and group.calls >= MANY:
            by_loop[group.loop].append(group)
    operators_s = sum(node.s for node in flow.nodes if node.step == 0)
    rows = [_row(flow, loop, found) for loop, found in by_loop.items() if _independent(found)]
    worth = [row for row in rows if row.s >= LEAST * operators_s]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _groups(flow: Flow, training: Collection[tuple[str, int]]) -> list[_Group]:
    """The groups, costliest first."""
    members: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, node in enumerate(flow.nodes):
        if node.step:
            break
        if not (node.backward or node.loader or node.counter) and node.chain:
            members[node.chain[0], node.name, node.shapes].append(index)
    groups = []
    for indexes in members.values():
        loops = [] if len(indexes) < MANY else _loops(flow.nodes[indexes[0]].chain, training)
        if loops:
            seconds = sum(flow.nodes[index].s for index in indexes)
            groups.append(_Group(indexes, loops, seconds))
    return sorted(groups, key=lambda group: -group.s)


def _loops(chain: Sequence[FlowLine], training: Collection[tuple[str, int]]) -> list[AstLoop]:
    """Loops of the user's within a step around these lines, the innermost first."""
    loops: dict[AstLoop, None] = {}
    for line in chain:
        for loop in loops_around(line.file, line.number):
            if any(file == loop.file and number in loop for file, number in training):
                return list(loops)
            loops[loop] = None
    return list(loops)


def _levels(flow: Flow, members: Sequence[int], unit: dict[int, int]) -> dict[int, int]:
    """The number of calls of a group, each needing the one before, that led to each node."""
    levels: dict[int, int] = {}
    floor = highest = 0
    for index in range(members[0], members[-1] + 1):
        node = flow.nodes[index]
        floor = max(floor, *(levels.get(given, 0) for given in flow.given.get(index, ())), 0)
        if node.backward:
            floor = highest
            continue
        own = unit.get(index)
        level = floor if own is not None else 0
        for dep in node.deps:
            if dep in levels and dep not in node.onto:
                level = max(level, levels[dep] - (own is not None and unit.get(dep) == own))
        level += own is not None
        highest = max(highest, level)
        if level:
            levels[index] = level
    return levels


def _independent(groups: Sequence[_Group]) -> bool:
    spared = sum(group.s * (1 - group.levels / group.calls) for group in groups)
    enough = spared >= INDEPENDENT * sum(group.s for group in groups)
    return enough and max(group.calls - group.levels for group in groups) >= MANY


def _row(flow: Flow, loop: AstLoop, groups: Sequence[_Group]) -> wire.RepeatSeen:
    """The report on a loop."""
    groups = sorted(groups, key=lambda group: -group.s)
    most = groups[0]
    alike = [group for group in groups if _site(flow, group) == _site(flow, most)]
    seconds = sum(group.s for group in groups)
    nodes = [flow.nodes[index] for group in groups for index in group.members]
    lines = tuple(dict.fromkeys(node.where for node in nodes if node.where is not None))
    forward = (node for node in flow.nodes if not (node.step or node.backward))
    there = sum(node.s for node in forward if node.where in lines)
    inside = any(call.begin <= most.members[0] < call.end for call in flow.calls)
    shapes = (flow.nodes[group.members[0]].shapes for group in groups)
    taken = [{storage for storage, _ in flow.nodes[index].reads} for index in most.members]
    weights = {frozenset(storages & flow.book.owned.keys()) for storages in taken}
    return wire.RepeatSeen(
        where=f"{places.display(loop.file)}:{loop.line}",
        source=linecache.getline(loop.file, loop.line).strip(),
        lines=lines,
        operators=tuple(dict.fromkeys(node.name for node in nodes)),
        shapes=tuple(", ".join("x".join(map(str, shape)) for shape in each) for each in shapes),
        calls=sum(group.calls for group in alike),
        left=sum(group.levels for group in alike),
        kept=sum(group.s * group.levels / group.calls for group in groups) / seconds
        if seconds
        else 0.0,
        share=min(1.0, seconds / there) if there else 1.0,
        s=seconds,
        modelling=inside,
        own_weights=len(weights) > most.calls / 2,
    )


def _site(flow: Flow, group: _Group) -> tuple[str, FlowLine]:
    """Its operator and line, regardless of shapes."""
    node = flow.nodes[group.members[0]]
    return node.name, node.chain[0]
