"""Findings from the data flow of two steps: unread results, constants made again, float64."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.questions.again import again
from flatout_agent.watch.profile.flow.questions.beside import beside
from flatout_agent.watch.profile.flow.questions.constants import constants
from flatout_agent.watch.profile.flow.questions.embeddings import embeddings
from flatout_agent.watch.profile.flow.questions.gradients import unused_gradients
from flatout_agent.watch.profile.flow.questions.ignored import ignored
from flatout_agent.watch.profile.flow.questions.recomputed import recomputed
from flatout_agent.watch.profile.flow.questions.repeats import repeats
from flatout_agent.watch.profile.flow.questions.unread import unread
from flatout_agent.watch.profile.flow.reading import with_sources
from flatout_agent.watch.profile.flow.records import FlowLine, FlowNode
from flatout_agent.watch.profile.flow.weights import WeightLooks

SLIGHT = 0.05
"""Share of the costliest source of float64 below which another is not reported."""
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
    live = _live(flow) if both else set()
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
        **_noted(flow),
    )


def _noted(flow: Flow) -> dict[str, Any]:
    """The records made besides the flow: fields of FlowSeen."""
    return {
        "embeddings": embeddings(flow),
        "ignored": ignored(flow) if not flow.unseen else (),
        "recomputed": recomputed(flow),
    }


def doubles(flow: Flow) -> tuple[wire.DoubleSeen, ...]:
    """The places where float64 enters, costliest first."""
    entries = sorted(flow.doubles.entries, key=lambda entry: -entry.s)
    most_s = entries[0].s if entries else 0.0
    return tuple(
        wire.DoubleSeen(entry.what, entry.where, entry.part, entry.operators, entry.s)
        for entry in entries[:MOST]
        if entry.operators and entry.s >= SLIGHT * most_s
    )


def _live(flow: Flow) -> set[int]:
    """Operators whose result is read, or may still be read."""
    waiting = [
        index
        for index, node in enumerate(flow.nodes)
        if node.step > 0 or node.read or _kept(node, index)
    ]
    return with_sources(flow.nodes, waiting)


def _kept(node: FlowNode, index: int) -> bool:
    """Whether its result is still in memory."""
    return any(state.node == index and not state.outside and state.alive for state in node.made)
