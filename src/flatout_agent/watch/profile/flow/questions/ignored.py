"""Logits most of whose rows a loss ignores."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.reading import flops_share, seconds
from flatout_agent.watch.profile.flow.records import FlowNode
from flatout_agent.watch.profile.flow.values import FlowLoss

LEAST = 0.01
"""Share of the step's operators below which a row is left out."""
FEW_USED = 0.4
"""The largest share of the rows of logits that the loss counts."""
MOST = 8
"""The most rows reported."""
PASSING = frozenset(
    f"aten.{name}"
    for name in (
        "_log_softmax", "_to_copy", "clone", "index", "index_select", "add", "sub", "mul", "div",
        "tanh", "copy_", "add_", "mul_", "div_",
    )
)  # fmt: skip
"""Operators that may come between a head's product and the loss."""
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.addmv")
ASKING = frozenset(f"aten.{name}" for name in ("argmax", "max", "topk", "amax"))
"""Operators that compute a metric that fewer rows would also give."""


def ignored(flow: Flow) -> tuple[wire.IgnoredSeen, ...]:
    """Logits most of whose rows a loss ignores, by the lines of their head and loss."""
    takers: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(flow.nodes):
        for dep in node.deps if not node.step else ():
            takers[dep].append(index)
    groups: dict[tuple[str | None, str | None, int], list[wire.IgnoredSeen]] = defaultdict(list)
    for loss in flow.values.losses:
        row = _ignored_row(flow, loss, takers)
        if row is not None:
            groups[row.head_where, row.loss_where, row.classes].append(row)
    rows = [
        dataclasses.replace(
            calls[0],
            rows=sum(row.rows for row in calls),
            used=sum(row.used for row in calls),
            ignored=sum(row.ignored for row in calls),
            s=sum(row.s for row in calls),
            flops=sum(row.flops for row in calls),
        )
        for calls in groups.values()
    ]
    worth = [row for row in rows if row.s >= LEAST * seconds(flow.nodes)]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _ignored_row(
    flow: Flow, loss: FlowLoss, takers: Mapping[int, Sequence[int]]
) -> wire.IgnoredSeen | None:
    """The row of a loss, or None if it has no such head, needs enough of it, or something else
    needs it too.
    """
    # The one product that the loss's logits come from, and the operators in between.
    between: set[int] = set()
    heads: set[int] = set()
    waiting = [loss.node]
    while waiting:
        for dep in flow.nodes[waiting.pop()].deps:
            node = flow.nodes[dep]
            if node.name in ("aten.mm", "aten.addmm"):
                heads.add(dep)
            elif node.name in PASSING and not node.backward and dep not in between:
                between.add(dep)
                waiting.append(dep)
    head = heads.pop() if len(heads) == 1 else None
    if head is None or _needed_elsewhere(flow, {head, *between}, loss.node, takers):
        return None
    rows = _rows(flow.nodes[head], loss.classes)
    used = loss.targets - loss.ignored
    if rows is None or loss.targets > rows or used > FEW_USED * rows:
        return None
    size = rows * loss.classes
    backward = [node for node in flow.nodes if node.backward and _holds(node, size, loss.classes)]
    if not any(node.name in PRODUCTS for node in backward):
        return None
    forward = [flow.nodes[index] for index in (*sorted(between), loss.node)]
    nodes = [flow.nodes[head], *(node for node in forward if _holds(node, size, loss.classes))]
    nodes += [node for node in backward if node.step == 0]
    return wire.IgnoredSeen(
        head_where=flow.nodes[head].where,
        loss_where=flow.nodes[loss.node].where,
        classes=loss.classes,
        rows=rows,
        used=used,
        ignored=loss.ignored,
        s=seconds(nodes),
        flops=flops_share(flow, nodes),
    )


def _needed_elsewhere(
    flow: Flow, logits: Collection[int], loss: int, takers: Mapping[int, Sequence[int]]
) -> bool:
    """Whether something but this loss takes the logits, or they are kept."""
    for index in logits:
        node = flow.nodes[index]
        if node.read and node.name != "aten.index":
            return True
        if any(state.node == index and state.alive for state in node.made):
            return True
        for taker in takers.get(index, ()):
            other = flow.nodes[taker]
            allowed = other.backward or other.name in ASKING
            if not (allowed or taker in logits or taker == loss):
                return True
    return False


def _rows(head: FlowNode, classes: int) -> int | None:
    """The rows of the logits that it makes, or None if the classes are none of its dimensions."""
    left, right = head.shapes[-2:]
    if right[-1] == classes:
        return left[0]
    return right[-1] if left[0] == classes else None


def _holds(node: FlowNode, size: int, classes: int) -> bool:
    """Whether it takes a tensor of all the logits' size."""
    return any(shape.numel() == size and classes in shape for shape in node.shapes)
