"""Products whose rows hardly anything takes: a layer on all positions of which the last is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from flatout_agent import wire
from flatout_agent.watch.profile.flow import Flow, FlowNode
from flatout_agent.watch.profile.flow_rows import PRODUCTS, FlowTable, TakenRows

LEAST = 0.01
"""Share of the step's operators below which a row is left out."""
FEW_USED = 0.25
"""Of the rows of a table, those that are taken, at most."""
LEAST_ROWS = 16
DISPATCH_S = 10e-6
"""Of each operator that fewer rows do not save."""
MOST = 8
"""Rows."""


def unread_rows(flow: Flow, told: Collection[str | None]) -> tuple[wire.UnreadRowsSeen, ...]:
    """Of the first step, the costliest first. told: lines of products that are named otherwise."""
    used = _used(flow)
    groups: dict[tuple[str | None, int], list[FlowTable]] = defaultdict(list)
    for table in flow.values.rows.tables:
        if table in used:
            root = _root(table, used)
            groups[flow.nodes[root.nodes[0]].where, root.rows].append(table)
    rows = [
        _row(flow, tables, used)
        for (where, _), tables in groups.items()
        if where is not None
        and any(table.right >= 0 for table in tables)
        and not any(flow.nodes[table.nodes[0]].where in told for table in tables)
    ]
    least_s = LEAST * sum(node.s for node in flow.nodes if node.step == 0)
    worth = [row for row in rows if row.s >= least_s]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _used(flow: Flow) -> dict[FlowTable, int]:
    """How many rows are taken of each table of which few are, its own or those made from it."""
    taken: dict[FlowTable, set[TakenRows] | None] = {}
    for table in reversed(flow.values.rows.tables):
        kept = table.storage.alive or any(flow.nodes[index].read for index in table.nodes)
        rows: set[TakenRows] | None = None if table.whole or kept else set(table.reads)
        for made in table.makes:
            more = taken[made]
            rows = None if rows is None or more is None else rows | more
        taken[table] = rows
    counts = {
        table: sum(some.number for some in rows)
        for table, rows in taken.items()
        if rows is not None
    }
    return {
        table: count
        for table, count in counts.items()
        if table.rows >= LEAST_ROWS and 0 < count <= FEW_USED * table.rows
    }


def _root(table: FlowTable, used: Collection[FlowTable]) -> FlowTable:
    """The first one of those that it is made from, and of which few rows are taken."""
    while table.source is not None and table.source in used:
        table = table.source
    return table


def _row(
    flow: Flow, tables: Sequence[FlowTable], used: dict[FlowTable, int]
) -> wire.UnreadRowsSeen:
    roots = [table for table in tables if _root(table, used) is table]
    forward = {index for table in tables for index in table.nodes}
    nodes = [flow.nodes[index] for index in sorted(forward | _backward(flow, tables))]
    readers = [index for table in tables for index in table.reads.values()]
    flops = sum(node.flops for node in flow.nodes if node.step == 0)
    first = next(table for table in tables if table.right >= 0)
    return wire.UnreadRowsSeen(
        where=flow.nodes[first.nodes[0]].where,
        read_where=next((flow.nodes[index].where for index in sorted(readers)), None),
        products=sum(table.right >= 0 for table in tables),
        rows=sum(table.rows for table in roots),
        used=sum(used[table] for table in roots),
        s=sum(max(0.0, node.s - DISPATCH_S) for node in nodes),
        flops=sum(node.flops for node in nodes) / flops if flops else 0.0,
    )


def _backward(flow: Flow, tables: Sequence[FlowTable]) -> set[int]:
    """Operators of the backward pass on all rows of these tables."""
    backward = {
        index: node for index, node in enumerate(flow.nodes) if node.backward and not node.step
    }
    products = [table for table in tables if table.right >= 0]
    values = {table.storage.ref.cdata for table in tables}
    factors = {storage for table in products for storage in (table.left, table.right)} | values
    sizes = {table.rows * table.columns for table in tables}
    chosen: set[int] = set()
    gradients: set[int] = set()
    for index, node in backward.items():
        reads = {storage for storage, _ in node.reads}
        if node.name in PRODUCTS:
            if reads & factors and any(_belongs(node, table) for table in products):
                chosen.add(index)
                gradients |= reads - factors
        elif reads & values and _has_size(node, sizes):
            chosen.add(index)
    for index, node in backward.items():
        made = any(state.ref.cdata in gradients for state in node.made)
        if made or (_has_size(node, sizes) and any(read[0] in gradients for read in node.reads)):
            chosen.add(index)
    return chosen


def _belongs(node: FlowNode, table: FlowTable) -> bool:
    """Whether it is, by its shapes, a product's gradient with respect to one of its factors."""
    shapes = sorted(tuple(sorted(shape)) for shape in node.shapes[-2:])
    result, left, right = (
        tuple(sorted(shape))
        for shape in (
            (table.rows, table.columns),
            (table.rows, table.inner),
            (table.inner, table.columns),
        )
    )
    return shapes in (sorted((result, left)), sorted((result, right)))


def _has_size(node: FlowNode, sizes: Collection[int]) -> bool:
    return any(shape.numel() in sizes for shape in node.shapes)
