"""Constants that two steps make again: the lines, and the user's calls that make them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.reading import flops_share
from flatout_agent.watch.profile.flow.records import FlowCall, FlowConstant, Stack
from flatout_agent.watch.profile.flow.schemas import FROM_NOTHING
from flatout_agent.watch.profile.storages import storage_key

LEAST = 0.01
"""Share of the step's operators below which nothing is reported."""
LARGE = 16 << 10
"""Constants of this many bytes are reported regardless of their operators' time, as Python may take
longer."""
MOST = 8
"""The most rows reported."""
INITIAL = FROM_NOTHING | {
    f"aten.{name}" for name in ("zeros", "ones", "full", "empty", "fill_", "zero_", "empty_strided")
}
"""Operators that make initial values in one pass over memory, whose results are not worth
keeping."""


@dataclass(frozen=True)
class _Site:
    """A line of the user's whose call gives only constants."""

    where: str
    called: str
    """The function, or the kind of the module; empty if it has no name."""


def constants(flow: Flow, operators_s: float) -> tuple[wire.ConstantSeen, ...]:
    """Constants made in both steps by the same lines with the same result.

    They are grouped by the user's outermost line whose call gives only constants, or else by the
    last line of each.
    """
    varying: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    for index, node in enumerate(flow.nodes):
        if not (node.step or node.constant or node.backward):
            varying[node.where, node.name].append(index)
    sites = _sites(flow)
    # Storages of the weights of frozen networks with the shapes of a trained one: target networks
    # get its weights from time to time.
    references = [flow.notes.modules[key] for key in flow.notes.roots]
    networks = [module for reference in references if (module := reference()) is not None]
    weights = [[*module.parameters()] for module in networks]
    trained = {_shapes(group) for group in weights if any(w.requires_grad for w in group)}
    frozen = [group for group in weights if not any(weight.requires_grad for weight in group)]
    renewed = {
        key
        for group in frozen
        if group and _shapes(group) in trained
        for weight in group
        if (key := storage_key(weight)) is not None
    }
    first = [
        constant
        for constant in flow.constants.constants
        if constant.step == 0
        and not constant.changed
        and (constant.node in sites or not _general(flow, constant, varying))
    ]
    again = Counter(
        _identity(flow, constant)
        for constant in flow.constants.constants
        if constant.step == 1 == flow.nodes[constant.node].step
    )
    groups: dict[tuple[str, _Site | None], list[FlowConstant]] = defaultdict(list)
    for constant in first:
        identity = _identity(flow, constant)
        site = sites.get(constant.node)
        chain = [flow.nodes[index] for index in sorted(_chain(flow, constant.node), reverse=True)]
        last_line = next((node.where for node in chain if node.where is not None), None)
        where = site.where if site is not None else last_line
        initial = all(node.name in INITIAL for node in chain)  # only filled with a number
        if again[identity] and where is not None and not initial:
            if any(key in renewed for node in chain for key, _ in node.reads):
                continue
            again[identity] -= 1
            groups[where, site].append(constant)
    rows = [_constant(flow, where, site, group, varying) for (where, site), group in groups.items()]
    worth = [row for row in rows if row.s >= LEAST * operators_s / 4 or row.bytes >= LARGE]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _shapes(weights: Sequence[torch.Tensor]) -> tuple[torch.Size, ...]:
    return tuple(weight.shape for weight in weights)


def _sites(flow: Flow) -> dict[int, _Site]:
    """Operator that makes a constant -> the user's outermost call that gives only constants.

    The calling line must call it for nothing that changes: a layer of a network may get constants
    in its first call only.
    """
    below: dict[Stack, bool] = {}
    for node in flow.nodes:
        if not (node.step or node.backward or node.loader):
            below[node.chain] = below.get(node.chain, True) and node.constant
    same: dict[Stack, bool] = {}
    for chain, constant in below.items():
        for at in range(len(chain)):
            same[chain[at:]] = same.get(chain[at:], True) and constant
    mixed = {(line.file, line.number) for chain in below if not below[chain] for line in chain}
    kinds = {call.chain: call.kind for call in reversed(flow.calls) if call.step == 0}
    sites = {}
    for entry in flow.constants.constants:
        chain = flow.nodes[entry.node].chain
        depth = next((at for at in range(len(chain)) if not same.get(chain[at:])), len(chain)) - 1
        if depth < 1 or (chain[depth].file, chain[depth].number) in mixed:
            continue
        line, function = chain[depth], chain[depth - 1].function
        called = kinds.get(chain[depth:], "" if function.startswith("<") else function)
        inner = {(line.file, line.function) for line in chain[:depth]}
        if not any((line.file, line.function) in inner for line in flow.read_at):
            sites[entry.node] = _Site(str(line), called)
    return sites


def _general(
    flow: Flow, constant: FlowConstant, varying: Mapping[tuple[str | None, str], Sequence[int]]
) -> bool:
    """Whether its line works on changing values in another call of a module, as a layer on its
    input.
    """
    node = flow.nodes[constant.node]
    own = _innermost(flow, constant.node)
    alike = varying.get((node.where, node.name), ())
    return any(_innermost(flow, index) != own for index in alike)


def _innermost(flow: Flow, index: int) -> FlowCall | None:
    """The call of a module in which an operator ran."""
    around = [call for call in flow.calls if call.begin <= index < call.end]
    return around[-1] if around else None


def _identity(flow: Flow, constant: FlowConstant) -> tuple[object, ...]:
    node = flow.nodes[constant.node]
    return (node.name, node.where, constant.shape, constant.dtype, constant.digest)


def _constant(
    flow: Flow,
    where: str,
    site: _Site | None,
    group: Sequence[FlowConstant],
    varying: Mapping[tuple[str | None, str], Sequence[int]],
) -> wire.ConstantSeen:
    chain = sorted({index for constant in group for index in _chain(flow, constant.node)})
    nodes = [flow.nodes[index] for index in chain]
    largest = max(group, key=lambda constant: constant.bytes)
    spent: dict[str, float] = defaultdict(float)
    busy = {line for line, _ in varying} if site is not None else set()
    for node in nodes:
        spent[where if node.where is None or node.where in busy else node.where] += node.s
    lines = [where if node.where in busy else node.where for node in nodes]
    shared = any((node.where, node.name) in varying for node in nodes)
    return wire.ConstantSeen(
        where=where
        if site is not None and shared
        else max(reversed(spent), key=lambda line: spent[line]),
        lines=tuple(dict.fromkeys(line for line in lines if line is not None)),
        operators=tuple(dict.fromkeys(node.name for node in nodes)),
        calls=len(group),
        shape="x".join(map(str, largest.shape)),
        dtype=largest.dtype,
        bytes=sum(constant.bytes for constant in group),
        s=sum(node.s for node in nodes),
        compared=all(constant.compared for constant in group),
        called=site.called if site is not None else "",
        shared=site is not None and shared,
        flops=flops_share(flow, nodes),
    )


def _chain(flow: Flow, last: int) -> set[int]:
    """All operators that make a constant."""
    chain, waiting = {last}, [last]
    while waiting:
        for source in flow.nodes[waiting.pop()].sources:
            if source not in chain and flow.nodes[source].step == flow.nodes[last].step:
                chain.add(source)
                waiting.append(source)
    return chain
