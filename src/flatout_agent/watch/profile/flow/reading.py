"""Helpers with which questions read the operators of a flow."""

from __future__ import annotations

from collections.abc import Iterable

from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.records import FlowNode, Nodes

GRADIENTS = "autograd.grad"
"""The name reported for calls of torch.autograd.grad."""


def with_sources(nodes: Nodes, indexes: Iterable[int], within_step: bool = False) -> set[int]:
    """These operators and all that they depend on."""
    reached = set(indexes)
    waiting = list(reached)
    while waiting:
        node = nodes[waiting.pop()]
        for dep in node.deps:
            if dep not in reached and not (within_step and nodes[dep].step != node.step):
                reached.add(dep)
                waiting.append(dep)
    return reached


def seconds(nodes: Iterable[FlowNode], step: int = 0) -> float:
    """CPU seconds in the operators of a step."""
    return sum(node.s for node in nodes if node.step == step)


def flops_share(flow: Flow, nodes: Iterable[FlowNode]) -> float:
    """Share of the first step's floating-point operations."""
    flops = sum(node.flops for node in flow.nodes if node.step == 0)
    return sum(node.flops for node in nodes) / flops if flops else 0.0


def grad_call(flow: Flow, node: FlowNode) -> int:
    """Number of the call of torch.autograd.grad that it belongs to, or -1 if none."""
    number = node.backward_pass
    return number if number >= 0 and flow.passes[number].gives else -1
