"""Recomputation by activation checkpointing in a backward pass."""

from __future__ import annotations

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow


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
