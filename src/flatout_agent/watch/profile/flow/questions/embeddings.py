"""Embeddings that get dense gradients though a step touches few of their rows."""

from __future__ import annotations

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.values import LOOKUPS

MANY_ROWS = 5
"""The least rows of an embedding per index of a step."""
MOST = 8
"""The most rows reported."""


def embeddings(flow: Flow) -> tuple[wire.EmbeddingSeen, ...]:
    """Weights of embeddings that get dense gradients though a step touches few rows."""
    dense = [node for node in flow.nodes if node.backward and "embedding" in node.name]
    first = next((index for index, node in enumerate(flow.nodes) if node.backward), 0)
    otherwise = {
        storage
        for node in flow.nodes[:first]
        if node.name not in LOOKUPS
        for storage, _ in node.reads
    }
    rows = []
    for weight in dict.fromkeys(note.weight for note in flow.values.lookups):
        notes = [note for note in flow.values.lookups if note.weight == weight]
        indices = sum(note.indices for note in notes)
        if not dense or weight in otherwise or notes[0].rows < MANY_ROWS * indices:
            continue
        lines = (flow.nodes[note.node].where for note in notes)
        rows.append(
            wire.EmbeddingSeen(
                name=flow.values.names.get(weight, ""),
                lines=tuple(dict.fromkeys(line for line in lines if line is not None)),
                rows=notes[0].rows,
                width=notes[0].width,
                indices=indices,
                touched=sum(note.touched for note in notes),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.rows * row.width)[:MOST])
