"""Findings from the data flow of two steps: the answers of `questions`, and those that the flow's
own records give: float64, embeddings, recomputation.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.questions.again import again
from flatout_agent.watch.profile.flow.questions.beside import beside
from flatout_agent.watch.profile.flow.questions.constants import constants
from flatout_agent.watch.profile.flow.questions.gradients import WeightLooks, unused_gradients
from flatout_agent.watch.profile.flow.questions.ignored import ignored
from flatout_agent.watch.profile.flow.questions.repeats import repeats
from flatout_agent.watch.profile.flow.questions.unread import unread
from flatout_agent.watch.profile.flow.reading import with_sources
from flatout_agent.watch.profile.flow.records import FlowLine
from flatout_agent.watch.profile.flow.values import LOOKUPS

SLIGHT = 0.05
"""Share of the costliest source of float64 below which another is not reported."""
MANY_ROWS = 5
"""The least rows of an embedding per index of a step."""
MOST = 8
"""The most rows of each kind."""


def results(
    flow: Flow,
    training: Collection[FlowLine] = (),
    weights: WeightLooks | None = None,
    by_hand: bool = False,
) -> wire.FlowSeen | None:
    """The findings, or None if the flow is not known to be complete. Questions that compare two
    steps are left out after one step, and questions about the use of a value if unseen code takes
    some.

    training: the lines on the stack while `backward` runs, if known. weights: fingerprints from
    some steps before. by_hand: no optimizer changes them.
    """
    if not flow.going:
        return None
    first = [node for node in flow.nodes if node.step == 0]
    operators_s = sum(node.s for node in first)
    both = flow.steps >= 2 and not flow.unseen
    known = both and flow.modelled
    live: set[int] = set()
    if both:  # operators whose result is read, or may still be read
        waiting = [
            index
            for index, node in enumerate(flow.nodes)
            if node.step > 0
            or node.read
            or any(s.node == index and not s.outside and s.alive for s in node.made)  # in memory
        ]
        live = with_sources(flow.nodes, waiting)
    rows, lines = beside(flow, live) if known else ((), ())
    return wire.FlowSeen(
        steps=flow.steps,
        operators=len(first),
        operators_s=operators_s,
        unread=unread(flow, live, operators_s) if known else (),
        constants=constants(flow, operators_s) if both else (),
        again=again(flow, live) if both else (),
        doubles=doubles(flow),
        default_double=torch.get_default_dtype() is torch.float64,
        repeats=repeats(flow, training) if not flow.unseen and flow.modelled else (),
        beside=rows,
        training=lines,
        gradients=unused_gradients(flow, weights, by_hand) if flow.modelled else None,
        embeddings=embeddings(flow),
        ignored=ignored(flow) if not flow.unseen else (),
        recomputed=recomputed(flow),
    )


def doubles(flow: Flow) -> tuple[wire.DoubleSeen, ...]:
    """The places where float64 enters, costliest first."""
    entries = sorted(flow.doubles.entries, key=lambda entry: -entry.s)
    most_s = entries[0].s if entries else 0.0
    return tuple(
        wire.DoubleSeen(entry.what, entry.where, entry.part, entry.operators, entry.s)
        for entry in entries[:MOST]
        if entry.operators and entry.s >= SLIGHT * most_s
    )


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


def recomputed(flow: Flow) -> wire.RecomputedSeen | None:
    """The recomputation of the first step, or None if no checkpoint recomputed anything in a
    backward pass.
    """
    nodes = {
        index: size
        for index, size in flow.notes.recomputed.items()
        if flow.nodes[index].step == 0
    }  # fmt: skip
    if not nodes:
        return None
    lines = flow.notes.checkpoints
    flops = sum(node.flops for node in flow.nodes if node.step == 0)
    spent = sum(flow.nodes[index].flops for index in nodes)
    return wire.RecomputedSeen(
        where=max(lines, key=lambda where: lines[where], default=None),
        operators=len(nodes),
        bytes=sum(nodes.values()),
        s=sum(flow.nodes[index].s for index in nodes),
        flops=spent / flops if flops else 0.0,
    )
