"""Work beside the training: operators that neither the loss nor the update of the weights needs.

The training is all that a backward pass comes from, all that writes to what the loss is computed
from (weights, running statistics, a replay buffer), and all that these come from in turn. Beside it
are averages and copies of weights, statistics, histograms, metrics. A value that the program reads
as a number, or keeps, may come back in ways that operators do not show: such work `steers` unless
its place says that it cannot.
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
"""Share of the step's operators below which a line is not told."""
MIXED = 0.05
"""Share of a line's time in operators that does not change what the line is told to be."""
MOST = 24
"""Lines beside the training."""
LINES = 400
"""Lines of the training."""
CIRCLES = 4
"""Times that what is written is followed to what needs it."""
SEEDS = ("aten.ones_like",)
"""The gradient that a backward pass begins with."""
LINEAR = frozenset(
    f"aten.{name}"
    for name in (
        "clone", "add", "add_", "copy_", "_to_copy", "div", "div_", "mul", "mul_", "zero_",
        "zeros_like", "empty_like", "empty", "_foreach_add", "_foreach_add_", "_foreach_mul_",
        "_foreach_div_", "_foreach_copy_",
    )
)  # fmt: skip
"""What adding up gradients is made of."""
NEUTRAL = ("aten.set_",)
"""They give a tensor another storage, and change no value: deepcopy calls them."""
FORWARD = "forward"
"""Comes from a forward pass that no training needs: evaluation, acting."""


@dataclass
class _Kinds:
    """The operators of the followed steps, by what becomes of them; numbers are their indexes."""

    nodes: Sequence[FlowNode]
    takes: list[list[tuple[int, int]]]
    """Of each: the storages that it takes, each with its last writer (-1: from before)."""
    needed: set[int] = field(default_factory=set)
    loss: set[int] = field(default_factory=set)
    """What backward passes come from within their step."""
    weights: set[int] = field(default_factory=set)
    """Storages of the models, and others that are updated, that the loss is computed from."""
    gradients: set[int] = field(default_factory=set)
    """Storages that backward passes write to."""
    updates: set[int] = field(default_factory=set)
    descends: set[int] = field(default_factory=set)
    """From a backward pass of the same step, outside of modules."""
    modules: set[int] = field(default_factory=set)
    """In calls of modules."""
    evaluating: set[int] = field(default_factory=set)
    """In forward passes that no training needs."""


def beside(
    flow: Flow, read: Collection[int]
) -> tuple[tuple[wire.BesideSeen, ...], tuple[str, ...]]:
    """Lines beside the training, the costliest first, and the lines of the training itself.

    read: operators whose result somebody reads; others are no part of either.
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
    kinds = _Kinds(nodes, _takes(nodes))
    kinds.modules = {index for call in flow.calls for index in range(call.begin, call.end)}
    backward = {index for index, node in enumerate(nodes) if node.backward}
    kinds.needed = _closed(nodes, with_sources(nodes, backward))
    kinds.loss = with_sources(nodes, backward, within_step=True)
    kinds.descends = _descending(kinds)
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


def _descending(kinds: _Kinds) -> set[int]:
    """Operators that come from a backward pass of their step, without a module between."""
    descending: set[int] = set()
    for index, node in enumerate(kinds.nodes):
        deps = (dep for dep in node.deps if kinds.nodes[dep].step == node.step)
        if index not in kinds.modules and any(
            kinds.nodes[dep].backward or dep in descending for dep in deps
        ):
            descending.add(index)
    return descending


def _takes(nodes: Sequence[FlowNode]) -> list[list[tuple[int, int]]]:
    """Operators stand in the order in which they ran: who wrote last is known at each."""
    writer: dict[int, int] = {}
    takes = []
    for index, node in enumerate(nodes):
        takes.append([(storage, writer.get(storage, -1)) for storage, _ in node.reads])
        writer.update((state.key, index) for state in node.made)
    return takes


def _taken(nodes: Sequence[FlowNode], indexes: Iterable[int]) -> set[int]:
    """The storages that these operators take."""
    return {storage for index in indexes for storage, _ in nodes[index].reads}


def _closed(nodes: Sequence[FlowNode], needed: set[int]) -> set[int]:
    """With all that writes to what these take: the next steps need it."""
    for _ in range(CIRCLES):
        taken = _taken(nodes, needed)
        writing = {
            index
            for index, node in enumerate(nodes)
            if index not in needed
            and node.name not in NEUTRAL
            and any(state.key in taken for state in node.made)
        }
        if not writing:
            break
        needed = with_sources(nodes, needed | writing)
    return needed


def _sources(kinds: _Kinds) -> dict[int, set[str]]:
    """Of each operator beside the training, what it is computed from."""
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

    A value read before may be in it as a number. Not meant are modules, the backward pass and the
    update.
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
    """The user's lines with an operator beside the training: all that they call."""
    lines: dict[str, list[int]] = defaultdict(list)
    beside = set()
    for index, node in enumerate(kinds.nodes):
        if node.where is None or node.backward or node.loader or node.counter:
            continue
        if node.name in NEUTRAL:
            continue
        lines[node.where].append(index)
        if index in read and index not in kinds.needed and node.step == 0:
            beside.add(node.where)  # what the last step makes, a later one may take
    return {where: indexes for where, indexes in lines.items() if where in beside}


def _row(
    kinds: _Kinds,
    where: str,
    indexes: Sequence[int],
    sources: Mapping[int, set[str]],
    steering: Mapping[str, Collection[int]],
    steps: int,
) -> wire.BesideSeen | None:
    """None: the line serves the training, an evaluation, or works on nothing of the training's."""
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
    """Lines that give the weights what comes from gradients: an optimizer's step."""
    return {
        kinds.nodes[index].where
        for index in kinds.updates
        if any(
            writer >= 0 and storage not in kinds.weights for storage, writer in kinds.takes[index]
        )
    }


def _clipping(kinds: _Kinds, sources: Mapping[int, set[str]]) -> set[int]:
    """Operators of whose result a number is read that may change weights or gradients.

    Gradients before the update, and weights before an operator of the program's that sets them.
    """
    read = {index for index in sources if _reaches_host(kinds.nodes[index])}
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


def _reaches_host(node: FlowNode) -> bool:
    """Whether the program is given its value, and it does not only change a tensor of before."""
    return node.read and not any(state.outside for state in node.made)


def _accumulated(kinds: _Kinds, steps: int) -> list[wire.BesideSeen]:
    """Lines that clone gradients and only add them up until the update; none if they do more."""
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
    """Of the operators that make up the work, the costliest first."""
    spent: dict[str, float] = defaultdict(float)
    for index in indexes:
        spent[nodes[index].name] += nodes[index].s
    least_s = MIXED * sum(spent.values())
    return tuple(
        name for name in sorted(spent, key=lambda name: -spent[name]) if spent[name] >= least_s
    )
