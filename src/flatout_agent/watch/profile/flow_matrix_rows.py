"""What the noted sorts, inverses, diagonal matrices and joins mean, by their lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from flatout_agent import wire
from flatout_agent.watch.profile.flow import Flow, FlowNode
from flatout_agent.watch.profile.flow_matrices import (
    FlowInverse,
    FlowJoin,
    FlowSort,
    FlowTriangle,
)

FEW = 4
"""A row is this many times as long as what is read of it, at least."""
OLDER = 0.5
"""Of the tensors that are joined, those from before the step, at least."""
WIDEST, WIDEST_PSEUDO = 0.5, 1.0
"""Right-hand sides, as a share of the rows, up to which a solve takes clearly less time than an
inverse and a product, which is faster for each of them."""
MOST_PRODUCTS = 2
"""With one inverse; each would be a solve."""
LEAST = 0.01
"""Share of the step's operators below which a row is left out."""
MOST = 8
"""Rows of each kind."""


def matrices(flow: Flow) -> dict[str, Any]:
    """Fields of wire.FlowSeen."""
    notes = flow.matrices
    whole = not flow.unseen  # else code that no dispatch mode sees may read the rest
    return {
        "sorts": _rows(flow, notes.sorts, _sorted) if whole else (),
        "inverses": _rows(flow, notes.inverses, _inverted) if whole else (),
        "diagonals": _rows(flow, notes.triangles, _diagonal),
        "joins": _rows(flow, notes.joins, _joined),
    }


def _rows(flow: Flow, notes: Sequence[Any], row_of: Any) -> tuple[Any, ...]:
    """By the line that calls, the costliest first."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for note in notes:
        where = flow.nodes[note.node].where
        if where is not None:
            groups[where].append(note)
    rows = [row_of(flow, where, group) for where, group in groups.items()]
    least_s = LEAST * _spent(node for node in flow.nodes if node.step == 0)
    worth = [row for row in rows if row is not None and row.s >= least_s]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _sorted(flow: Flow, where: str, notes: Sequence[FlowSort]) -> wire.SortSeen | None:
    """None: more than a narrow slice of a row is needed, or it is not known."""
    kinds = {_side(flow, note) for note in notes}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        return None
    longest = max(notes, key=lambda note: note.length)
    return wire.SortSeen(
        where=where,
        kind=kind,
        length=longest.length,
        read=max(_needed(note, kind) for note in notes),
        largest=longest.descending == (kind != "last"),
        calls=len(notes),
        shape=_text(flow.nodes[longest.node].shapes[0]),
        s=_spent(flow.nodes[note.node] for note in notes),
    )


def _side(flow: Flow, note: FlowSort) -> str | None:
    """first, last: which columns are read; single: one between them; None: too many."""
    node = flow.nodes[note.node]
    if note.whole or note.stable or note.end <= note.begin or node.read or _kept(node, note.node):
        return None
    most = note.length // FEW
    if note.end <= most:
        return "first"
    if note.length - note.begin <= most:
        return "last"
    return "single" if note.end - note.begin == 1 else None


def _needed(note: FlowSort, kind: str) -> int:
    return {"first": note.end, "last": note.length - note.begin}.get(kind, 1)


def _inverted(flow: Flow, where: str, notes: Sequence[FlowInverse]) -> wire.InverseSeen | None:
    """None: something but products takes the inverse, or too many of them to solve instead."""
    for note in notes:
        node = flow.nodes[note.node]
        if note.otherwise or not note.products or node.read or _kept(node, note.node):
            return None
        widest = (WIDEST_PSEUDO if note.pseudo else WIDEST) * min(note.shape[-2:])
        if len(note.products) > MOST_PRODUCTS or note.columns > widest:
            return None
    products = [flow.nodes[index].where for note in notes for index in note.products]
    return wire.InverseSeen(
        where=where,
        pseudo=any(note.pseudo for note in notes),
        hermitian=all(note.hermitian for note in notes),
        shape=_text(max(notes, key=lambda note: note.shape[-1:]).shape),
        calls=len(notes),
        products=tuple(dict.fromkeys(line for line in products if line is not None)),
        s=_spent(flow.nodes[note.node] for note in notes),
    )


def _diagonal(flow: Flow, where: str, notes: Sequence[FlowTriangle]) -> wire.DiagonalSeen | None:
    """None: not all of this line's matrices are diagonal."""
    if not all(note.diagonal for note in notes):
        return None
    makers = [flow.nodes[note.maker].where for note in notes if note.maker >= 0]
    largest = max(notes, key=lambda note: note.shape[-1])
    return wire.DiagonalSeen(
        where=where,
        operators=tuple(dict.fromkeys(flow.nodes[note.node].name for note in notes)),
        shape=_text(largest.shape),
        size=largest.shape[-1],
        built_where=next((line for line in makers if line is not None), None),
        calls=len(notes),
        s=_spent(flow.nodes[note.node] for note in notes),
    )


def _joined(flow: Flow, where: str, notes: Sequence[FlowJoin]) -> wire.JoinSeen | None:
    """None: most of the tensors were just computed."""
    old = [note for note in notes if note.older >= OLDER * note.tensors]
    if not old or len(old) < len(notes):
        return None
    longest = max(old, key=lambda note: note.tensors)
    return wire.JoinSeen(
        where=where,
        tensors=longest.tensors,
        older=longest.older,
        shape=_text(longest.shape),
        calls=len(old),
        bytes=sum(note.bytes for note in old),
        s=_spent(flow.nodes[note.node] for note in old),
    )


def _kept(node: FlowNode, index: int) -> bool:
    """Whether its result is still in memory."""
    return any(state.node == index and state.alive for state in node.made)


def _text(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _spent(nodes: Iterable[FlowNode]) -> float:
    """CPU seconds in them."""
    return sum(node.s for node in nodes)
