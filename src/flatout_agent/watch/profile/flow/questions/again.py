"""Repeated computations of one step on the same values: calls of modules, and derivatives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.reading import GRADIENTS, flops_share, grad_call
from flatout_agent.watch.profile.flow.records import FlowCall, Stack
from flatout_agent.watch.profile.flow.schemas import CLEARING

LEAST = 0.01
"""Share of the step's operators, by time or by operations, below which nothing is reported."""
MOST = 8
"""The most rows reported."""
LINES = 6
"""The most lines named."""
ADDING = "aten.add_"
"""Operators that add a gradient to an existing one."""


@dataclass
class _Again:
    """Calls of one module on one line, or of torch.autograd.grad in one function."""

    stacks: list[Stack] = field(default_factory=list)
    """The stacks of the first call and of its repetitions."""
    firsts: set[int] = field(default_factory=set)
    """Operators with which the repeated calls begin."""
    calls: list[FlowCall] = field(default_factory=list)
    """The calls that repeat an earlier one."""
    repeated: int = 0
    nodes: set[int] = field(default_factory=set)
    """Operators of the repeated calls."""
    saving: bool = False
    """Whether a call with gradients repeats one without."""
    backward: str | None = None
    """Line of a backward pass that computes the same derivatives."""


def again(flow: Flow, live: Set[int]) -> tuple[wire.AgainSeen, ...]:
    """The repetitions of the first step that the second one also makes, costliest first.

    live: operators whose result is read. Unread results are reported elsewhere.
    """
    modules, later = _modules(flow, 0, live), _modules(flow, 1, None)
    gradients, later_gradients = _gradients(flow, 0, live), _gradients(flow, 1, None)
    modules = {key: item for key, item in modules.items() if key in later}
    gradients = {key: item for key, item in gradients.items() if key in later_gradients}
    rows = []
    for (kind, _, _), item in modules.items():
        own = [
            key
            for key, group in gradients.items()
            if group.backward is None and _through(flow, group, item)
        ]
        rows.append(_row(flow, f"{kind}()", item, [gradients.pop(key) for key in own]))
    rows += [_row(flow, GRADIENTS, item, ()) for item in gradients.values()]
    operators_s = sum(node.s for node in flow.nodes if node.step == 0)
    worth = [row for row in rows if row.s >= LEAST * operators_s or row.flops >= LEAST]
    return tuple(sorted(worth, key=lambda row: -row.s)[:MOST])


def _modules(flow: Flow, step: int, live: Set[int] | None) -> dict[tuple[str, int, str], _Again]:
    """The outermost calls that repeat one, by kind, module and line."""
    groups: dict[tuple[str, int, str], _Again] = defaultdict(_Again)
    calls = [call for call in flow.calls if call.step == step and call.end > call.begin]
    end = -1
    for call in calls:
        if call.begin < end or call.where is None:
            continue  # within one that is reported
        nodes = _repeated(flow, call, live)
        first = _first(flow, call, calls, nodes)
        if first is None:
            continue
        end = call.end
        group = groups[call.kind, call.module, call.where]
        if first.begin not in group.firsts:
            group.firsts.add(first.begin)
            group.stacks.append(first.chain)
        group.stacks.append(call.chain)
        group.calls.append(call)
        group.repeated += 1
        group.nodes |= nodes
        group.saving = group.saving or (call.gradients and not first.gradients)
    return {key: group for key, group in groups.items() if not _saves_memory(group)}


def _saves_memory(group: _Again) -> bool:
    """Whether it calls a module on all parts without gradients first, then on each with them.

    This serves to keep the activations of one part at a time.
    """
    return (
        group.saving
        and len(group.firsts) > 1
        and max(group.firsts) < min(call.begin for call in group.calls)
    )


def _through(flow: Flow, gradients: _Again, modules: _Again) -> bool:
    """Whether these derivatives go back through these calls."""
    return any(not modules.nodes.isdisjoint(flow.nodes[i].deps) for i in gradients.nodes)


def _repeated(flow: Flow, call: FlowCall, live: Set[int] | None) -> set[int]:
    """Its operators, if all give what an earlier one has given; otherwise none."""
    nodes = {index for index in range(call.begin, call.end) if not flow.nodes[index].counter}
    if not nodes or flow.nodes[call.begin].backward or flow.nodes[call.begin].loader:
        return set()
    if not all(index in flow.numbers.again for index in nodes):
        return set()
    if all(flow.nodes[index].constant for index in nodes):
        return set()  # the same in each step, which is reported elsewhere
    return nodes if live is None or not nodes.isdisjoint(live) else set()


def _first(
    flow: Flow, call: FlowCall, calls: Iterable[FlowCall], nodes: Collection[int]
) -> FlowCall | None:
    """The earlier call of the same module that gave the same and could serve for this one.

    Calls are excluded if gradients flow back through the input of only one of them: a discriminator
    learns from a detached input, the generator from one that is not.
    """
    last = flow.numbers.again[max(nodes)] if nodes else -1
    for other in calls:
        same = (other.module, other.kind) == (call.module, call.kind)
        if not same or other.end > call.begin or not other.begin <= last < other.end:
            continue
        if _around(flow, call) is not _around(flow, other):
            return None  # two calls that differ in the end (by dropout) may have equal parts
        apart = call.gradients and other.gradients and call.onwards != other.onwards
        return None if apart or flow.nodes[other.begin].backward else other
    return None


def _around(flow: Flow, inner: FlowCall) -> FlowCall | None:
    """The innermost call of a module that contains this one, or None for the program's own code."""
    around = None
    for call in flow.calls:
        if call is inner or call.begin > inner.begin:
            break
        if call.end >= inner.end and call.step == inner.step:
            around = call
    return around if not inner.root else None


def _gradients(flow: Flow, step: int, live: Set[int] | None) -> dict[tuple[str, str], _Again]:
    """Calls of torch.autograd.grad whose operators other passes repeat, by their function.

    They may partly compute something new; only the repeated part is counted.
    """
    computed: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(flow.nodes):
        if node.backward_pass >= 0 and node.step == step and index not in flow.notes.recomputed:
            computed[node.backward_pass].append(index)
    groups: dict[tuple[str, str], _Again] = defaultdict(_Again)
    for number, indexes in computed.items():
        stack = flow.passes[number].chain
        if not flow.passes[number].gives or not stack:
            continue
        group = groups[stack[0].file, stack[0].function]
        where = _same_backward(flow, number, computed)
        group.backward = group.backward or where
        repeated = {index for index in indexes if _is_again(flow, index, live)}
        if where is not None and (live is None or not live.isdisjoint(indexes)):
            repeated = set(indexes)
        group.stacks.append(stack)
        group.nodes |= repeated
        group.repeated += len(repeated) == len(indexes)
    return {key: group for key, group in groups.items() if group.repeated}


def _is_again(flow: Flow, index: int, live: Set[int] | None) -> bool:
    """Whether a derivative is computed again that an earlier call has computed."""
    first = flow.numbers.again.get(index)
    if first is None or (live is not None and index not in live):
        return False
    calls = grad_call(flow, flow.nodes[first]), grad_call(flow, flow.nodes[index])
    return calls[0] >= 0 and calls[0] != calls[1]


def _same_backward(flow: Flow, number: int, computed: Mapping[int, Sequence[int]]) -> str | None:
    """The line of a `backward` in the same step that leaves everything this call gives
    in `.grad`.
    """
    if flow.passes[number].graph:
        return None  # a pass that differentiates the gradients goes through it
    values = _values(flow, computed[number])
    for other, indexes in computed.items():
        if flow.passes[other].gives or not values <= _values(flow, indexes):
            continue
        if not any(_adds(flow, index, values) for index in indexes):
            return flow.passes[other].where
    return None


def _values(flow: Flow, indexes: Iterable[int]) -> set[int]:
    """The first operators of their step that made the same."""
    return {flow.numbers.again.get(index, index) for index in indexes}


def _adds(flow: Flow, index: int, values: Set[int]) -> bool:
    """Whether it adds one of these to a gradient that existed before its backward pass."""
    node = flow.nodes[index]
    if node.name != ADDING:
        return False
    own = {dep for dep in node.deps if flow.nodes[dep].backward_pass == node.backward_pass}
    before = set(node.deps) - own
    if values.isdisjoint(_values(flow, own)):
        return False
    if any(flow.nodes[dep].name in CLEARING for dep in before):
        return False
    return bool(before) or any(state.outside for state in node.made)


def _row(flow: Flow, what: str, group: _Again, gradients: Sequence[_Again]) -> wire.AgainSeen:
    """gradients: reported with it, as derivatives of the repeated call."""
    nodes = group.nodes.union(*(item.nodes for item in gradients))
    stack = group.stacks[-1]
    first = what == GRADIENTS and group.backward is None
    calls = group.repeated + first if what == GRADIENTS else len(group.stacks)
    return wire.AgainSeen(
        what=what,
        where=str(stack[0]),
        backward_where=group.backward,
        lines=_lines(group.stacks),
        calls=calls,
        repeated=group.repeated,
        gradients=sum(item.repeated for item in gradients),
        s=sum(flow.nodes[index].s for index in nodes),
        flops=flops_share(flow, (flow.nodes[index] for index in nodes)),
    )


def _lines(stacks: Sequence[Stack]) -> tuple[str, ...]:
    """The innermost lines at which these calls differ, or their own lines if there are none."""
    depth = min(map(len, stacks), default=0)
    for at in range(depth):
        lines = dict.fromkeys(str(stack[at]) for stack in stacks)
        if len(lines) > 1:
            return tuple(lines)[:LINES]
    return tuple(dict.fromkeys(str(stack[0]) for stack in stacks if stack))
