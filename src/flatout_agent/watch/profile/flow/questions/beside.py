"""Side work: operators that neither the loss nor the update of the weights needs.

The training consists of everything that a backward pass depends on, everything that writes to the
inputs of the loss (weights, running statistics, a replay buffer), and everything that these depend
on in turn. Side work is averages and copies of weights, statistics, histograms, metrics. A value
that the program reads as a number, or keeps, may come back in ways that operators do not show: such
work `steers` unless its place rules that out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.reading import with_sources
from flatout_agent.watch.profile.flow.records import FlowNode

LEAST = 0.01
"""Share of the step's operators below which a line is not reported."""
MIXED = 0.05
"""A share of a line's operator time that is too small to change what the line is reported as."""
MOST = 24
"""The most lines of side work."""
LINES = 400
"""The most lines of the training."""
CIRCLES = 4
"""How often writes are followed to what needs them."""
SEEDS = ("aten.ones_like",)
"""The operator for the gradient that a backward pass begins with."""
LINEAR = frozenset(
    f"aten.{name}"
    for name in (
        "clone", "add", "add_", "copy_", "_to_copy", "div", "div_", "mul", "mul_", "zero_",
        "zeros_like", "empty_like", "empty", "_foreach_add", "_foreach_add_", "_foreach_mul_",
        "_foreach_div_", "_foreach_copy_",
    )
)  # fmt: skip
"""Operators that add up gradients."""
NEUTRAL = ("aten.set_",)
"""Operators that give a tensor another storage without changing values; deepcopy calls them."""
FORWARD = "forward"
"""A source: a forward pass that no training needs (evaluation, acting)."""


@dataclass
class _Kinds:
    """The operators of the followed steps, by the use of their results; numbers are
    their indexes.
    """

    nodes: Sequence[FlowNode]
    takes: list[list[tuple[int, int]]]
    """For each operator, the storages that it takes, each with its last writer (-1 if written
    before)."""
    needed: set[int] = field(default_factory=set)
    loss: set[int] = field(default_factory=set)
    """Operators that backward passes depend on within their step."""
    weights: set[int] = field(default_factory=set)
    """Storages that the loss is computed from: those of the models, and others that are updated."""
    gradients: set[int] = field(default_factory=set)
    """Storages that backward passes write to."""
    updates: set[int] = field(default_factory=set)
    descends: set[int] = field(default_factory=set)
    """Operators that depend on a backward pass of the same step, outside modules."""
    modules: set[int] = field(default_factory=set)
    """Operators in calls of modules."""
    evaluating: set[int] = field(default_factory=set)
    """Operators in forward passes that no training needs."""


def beside(
    flow: Flow, read: Collection[int]
) -> tuple[tuple[wire.BesideSeen, ...], tuple[str, ...]]:
    """Lines of side work, costliest first, and the lines of the training itself.

    read: operators whose result is read; others belong to neither.
    """
    kinds = _kinds(flow)
    needed = (flow.nodes[index] for index in sorted(kinds.needed))
    lines = (node.where for node in needed if node.where and node.name not in NEUTRAL)
    training = tuple(dict.fromkeys(lines))[:LINES]
    sources = _sources(kinds)
    steering = {"values": _steering(kinds), "weights": _clipping(kinds, sources)}
    least_s = LEAST * sum(node.s for node in flow.nodes) / flow.steps
    rows = [
        row
        for where, indexes in _lines(kinds, read).items()
        if (row := _row(kinds, where, indexes, sources, steering, flow.steps)) is not None
    ]
    rows += _accumulated(kinds, flow.steps)
    worth = sorted((row for row in rows if row.s >= least_s), key=lambda row: -row.s)
    return tuple(worth[:MOST]), training


def _kinds(flow: Flow) -> _Kinds:
    nodes = flow.nodes
    # The storages that each operator takes, with their last writers: operators are in the order
    # in which they ran.
    writer: dict[int, int] = {}
    takes = []
    for index, node in enumerate(nodes):
        takes.append([(storage, writer.get(storage, -1)) for storage, _ in node.reads])
        writer.update((state.key, index) for state in node.made)
    kinds = _Kinds(nodes, takes)
    kinds.modules = {index for call in flow.calls for index in range(call.begin, call.end)}
    backward = {index for index, node in enumerate(nodes) if node.backward}
    # These operators and all that write to what they take, which the next steps need.
    kinds.needed = with_sources(nodes, backward)
    for _ in range(CIRCLES):
        taken = _taken(nodes, kinds.needed)
        writing = {
            index
            for index, node in enumerate(nodes)
            if index not in kinds.needed
            and node.name not in NEUTRAL
            and any(state.key in taken for state in node.made)
        }
        if not writing:
            break
        kinds.needed = with_sources(nodes, kinds.needed | writing)
    kinds.loss = with_sources(nodes, backward, within_step=True)
    for index, node in enumerate(nodes):
        deps = (dep for dep in node.deps if nodes[dep].step == node.step)
        if index not in kinds.modules and any(
            nodes[dep].backward or dep in kinds.descends for dep in deps
        ):
            kinds.descends.add(index)
    kinds.gradients = {state.key for index in backward for state in nodes[index].made}
    taken = _taken(nodes, kinds.loss - backward) - kinds.gradients
    for index in kinds.descends - backward:
        written = {state.key for state in nodes[index].made} & taken
        if written:
            kinds.weights |= written
            kinds.updates.add(index)
    kinds.weights |= _taken(nodes, kinds.needed) & set(flow.book.owned)
    for call in flow.calls:
        inside = range(call.begin, call.end)
        computes = any(nodes[index].flops for index in inside)
        if call.root and computes and kinds.needed.isdisjoint(inside):
            kinds.evaluating.update(inside)
    return kinds


def _taken(nodes: Sequence[FlowNode], indexes: Iterable[int]) -> set[int]:
    """The storages that these operators take."""
    return {storage for index in indexes for storage, _ in nodes[index].reads}


def _sources(kinds: _Kinds) -> dict[int, set[str]]:
    """The sources of each operator of side work."""
    taken = _taken(kinds.nodes, kinds.needed)
    sources: dict[int, set[str]] = {}
    for index in range(len(kinds.nodes)):
        if index in kinds.needed:
            continue
        found = {FORWARD} if index in kinds.evaluating else set()
        for storage, writer in kinds.takes[index]:
            if writer >= 0 and writer not in kinds.needed:
                found |= sources[writer]
            elif storage in kinds.gradients:
                found.add("gradients")
            elif storage in kinds.weights:
                found.add("weights")
            elif writer >= 0 or storage in taken:
                found.add("values")
        sources[index] = found
    return sources


def _steering(kinds: _Kinds) -> set[int]:
    """Operators after which the program itself does something for the training in that step.

    A value read before may enter it as a number. Modules, the backward pass and the update are
    excluded.
    """
    update_lines = _update_lines(kinds)
    steering: set[int] = set()
    last: dict[int, int] = {}
    for index in kinds.needed - kinds.updates - kinds.modules:
        node = kinds.nodes[index]
        if node.backward or node.loader or node.name in SEEDS or node.where in update_lines:
            continue
        last[node.step] = max(last.get(node.step, -1), index)
    for index, node in enumerate(kinds.nodes):
        if index < last.get(node.step, -1):
            steering.add(index)
    return steering


def _lines(kinds: _Kinds, read: Collection[int]) -> dict[str, list[int]]:
    """The user's lines with an operator of side work, and all operators that they call."""
    lines: dict[str, list[int]] = defaultdict(list)
    beside = set()
    for index, node in enumerate(kinds.nodes):
        if node.where is None or node.backward or node.loader or node.counter:
            continue
        if node.name in NEUTRAL:
            continue
        lines[node.where].append(index)
        if index in read and index not in kinds.needed and node.step == 0:
            beside.add(node.where)  # a later step may take what the last step makes
    return {where: indexes for where, indexes in lines.items() if where in beside}


def _row(
    kinds: _Kinds,
    where: str,
    indexes: Sequence[int],
    sources: Mapping[int, set[str]],
    steering: Mapping[str, Collection[int]],
    steps: int,
) -> wire.BesideSeen | None:
    """The row of this line, or None if it serves the training or an evaluation, or uses nothing of
    the training.
    """
    own = [index for index in indexes if index not in kinds.needed]
    spent_s = sum(kinds.nodes[index].s for index in own)
    serving_s = sum(kinds.nodes[index].s for index in indexes if index in kinds.needed)
    if serving_s > MIXED * (spent_s + serving_s):
        return None
    origins = set().union(*(sources[index] for index in own))
    if not origins or FORWARD in origins:
        return None
    source = next(name for name in ("values", "weights", "gradients") if name in origins)
    changing = steering["values" if source == "values" else "weights"]
    steers = any(index in changing for index in own)
    return wire.BesideSeen(where, source, spent_s / steps, _names(kinds.nodes, own), steers)


def _update_lines(kinds: _Kinds) -> set[str | None]:
    """Lines that write results of gradients to the weights: an optimizer's step."""
    return {
        kinds.nodes[index].where
        for index in kinds.updates
        if any(
            writer >= 0 and storage not in kinds.weights for storage, writer in kinds.takes[index]
        )
    }


def _clipping(kinds: _Kinds, sources: Mapping[int, set[str]]) -> set[int]:
    """Operators whose result, read as a number, may change weights or gradients.

    These are gradients before the update, and weights before an operator of the program that sets
    them.
    """
    read = {  # the program gets its value, and it does not merely change an earlier tensor
        index
        for index in sources
        if kinds.nodes[index].read and not any(state.outside for state in kinds.nodes[index].made)
    }
    setting: dict[int, int] = {}
    update_lines = _update_lines(kinds)
    for index in kinds.needed - kinds.modules:
        node = kinds.nodes[index]
        if node.where in update_lines:
            continue
        taken = {storage for storage, _ in node.reads}
        written = {state.key for state in node.made} & kinds.weights
        if written and taken <= written and not node.backward:
            setting[node.step] = max(setting.get(node.step, -1), index)
    clipping: set[int] = set()
    open_step = -1
    for index, node in enumerate(kinds.nodes):
        if node.backward:
            open_step = node.step
        elif index in kinds.updates:
            open_step = -1
        if index in read and (
            (open_step == node.step and "gradients" in sources[index])
            or index < setting.get(node.step, -1)
        ):
            clipping.add(index)
    return with_sources(kinds.nodes, clipping)


def _accumulated(kinds: _Kinds, steps: int) -> list[wire.BesideSeen]:
    """Lines that only clone and add up gradients until the update; none if they do more."""
    nodes = kinds.nodes
    update_lines = _update_lines(kinds)
    between = [
        index
        for index in sorted((kinds.needed & kinds.descends) - kinds.loss)
        if not (nodes[index].backward or nodes[index].where in update_lines)
    ]
    writers = {index: [writer for _, writer in kinds.takes[index]] for index in between}
    clones = any(
        nodes[index].name == "aten.clone" and any(at >= 0 and nodes[at].backward for at in taken)
        for index, taken in writers.items()
    )
    of_before = any(at < 0 or nodes[at].step != nodes[index].step
                    for index, taken in writers.items() for at in taken)  # fmt: skip
    if not clones or of_before or any(nodes[index].name not in LINEAR for index in between):
        return []
    lines: dict[str, list[int]] = defaultdict(list)
    for index in between:
        lines[nodes[index].where or ""].append(index)
    return [
        wire.BesideSeen(
            where,
            "accumulated",
            sum(nodes[index].s for index in indexes) / steps,
            _names(nodes, indexes),
        )
        for where, indexes in lines.items()
        if where
    ]


def _names(nodes: Sequence[FlowNode], indexes: Iterable[int]) -> tuple[str, ...]:
    """Names of the operators that make up the work, costliest first."""
    spent: dict[str, float] = defaultdict(float)
    for index in indexes:
        spent[nodes[index].name] += nodes[index].s
    least_s = MIXED * sum(spent.values())
    return tuple(
        name for name in sorted(spent, key=lambda name: -spent[name]) if spent[name] >= least_s
    )
