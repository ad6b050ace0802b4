"""Padding in the inputs of the counted steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import torch

from flatout_agent import wire
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.looks import InputLook
from flatout_agent.watch.profile.flow.records import FlowNode

LEAST_PADDED = 0.25
"""The least share of the length, on average over the batches ..."""
LEAST_EACH = 0.05
"""... and in each batch."""
LOSSES = frozenset(
    f"aten.{name}"
    for name in (
        "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "nll_loss_forward", "nll_loss2d_forward",
    )
)  # fmt: skip
LEAST_ROWS = 8
LEAST_LENGTHS = 3
"""The least rows, and distinct lengths among them, that show padding if nothing else does."""
DISPATCH_S = 10e-6
"""Seconds of each operator that a shorter input does not save."""
NEAR = 256
"""The most operators searched for the one that made the batch."""


def padding(flow: Flow) -> wire.PaddingSeen | None:
    """The input with the largest part that is padding in every row of all batches, or None."""
    groups: dict[tuple[str, int, int, bool], list[InputLook]] = defaultdict(list)
    for look in flow.notes.looks:
        groups[look.path, len(look.size), look.along, look.left].append(look)
    inputs = [(path, dimensions) for path, dimensions, _, _ in groups]
    rows = [
        _padding(flow, looks)
        for (path, dimensions, _, _), looks in groups.items()
        if (path, dimensions) not in flow.notes.whole
        and inputs.count((path, dimensions)) == 1
        and _certain(flow, looks)
    ]
    return max(filter(None, rows), key=lambda row: row.padded, default=None)


def _certain(flow: Flow, looks: Sequence[InputLook]) -> bool:
    """Whether the number is padding in all of these batches, and there is much of it."""
    if len(looks) < 2 or len({look.constant for look in looks}) > 1:
        return False
    padded = [look.padded for look in looks]
    if min(padded) < LEAST_EACH or sum(padded) < LEAST_PADDED * len(padded):
        return False
    if all(look.masked for look in looks):
        return any(len(set(look.lengths)) > 1 for look in looks)
    if any(look.inside for look in looks) or not all(any(look.lengths) for look in looks):
        return False
    if looks[0].words and looks[0].constant in _padding_indices(flow):
        return True
    lengths = [length for look in looks for length in look.lengths]
    varied = len(lengths) >= LEAST_ROWS and len(set(lengths)) >= LEAST_LENGTHS
    return varied and not any(_asked_for(flow, look) for look in looks)


def _asked_for(flow: Flow, look: InputLook) -> bool:
    """Whether a loss compares something over the whole length, so it may use the padded positions.

    A loss over classes does not if it ignores as many targets as there is padding.
    """
    rows, length = look.shape
    padded = rows * (length - max(look.lengths))
    ignoring = {loss.node for loss in flow.values.losses if loss.ignored >= padded}
    sizes = [
        tuple(size)
        for index, node in enumerate(flow.nodes)
        if node.name in LOSSES and not (node.backward or node.step or index in ignoring)
        for size in node.shapes
    ]
    whole = ((rows, length), (length, rows))
    return any(size[:2] in whole or size[:1] == (rows * length,) for size in sizes)


def _modules(flow: Flow) -> list[torch.nn.Module]:
    return [module for reference in flow.notes.modules.values() if (module := reference())]


def _padding_indices(flow: Flow) -> set[int]:
    """The padding indices of the embeddings that were called."""
    embeddings = (m for m in _modules(flow) if isinstance(m, torch.nn.Embedding))
    return {module.padding_idx for module in embeddings if module.padding_idx is not None}


def _padding(flow: Flow, looks: Sequence[InputLook]) -> wire.PaddingSeen | None:
    """The padding of these looks, or None if the model is made for this length."""
    parameters = {tuple(p.shape) for module in _modules(flow) for p in module.parameters()}
    shapes = {look.shape for look in looks}
    if any(_of_one_length(flow, look, parameters) for look in looks):
        return None
    recurrent = _recurrent(flow, {length for _, length in shapes})
    grows = {
        index: 0.0 if index in recurrent else DISPATCH_S
        for index, node in enumerate(flow.nodes)
        if index in recurrent or any(_grows(node, shape, parameters) for shape in shapes)
    }
    flops = sum(node.flops for node in flow.nodes)
    longest = max(max(look.lengths) for look in looks)
    return wire.PaddingSeen(
        where=next((at for look in looks if (at := _made_at(flow, look))), None),
        path=looks[0].path,
        shape="x".join(map(str, looks[0].size)),
        constant=looks[0].constant,
        masked=all(look.masked for look in looks),
        left=looks[0].left,
        length=looks[0].shape[1],
        longest=longest,
        padded=sum(look.padded for look in looks) / len(looks),
        filled=sum(map(_filled, looks)) / len(looks),
        s=_growing_s(flow, grows),
        flops=sum(flow.nodes[index].flops for index in grows) / flops if flops else 0.0,
    )


def _recurrent(flow: Flow, lengths: Collection[int]) -> set[int]:
    """Operators in recurrent layers that go through the whole length, token by token."""
    layers = {
        key
        for key, shape in flow.notes.recurrent.items()
        if len(shape) == 3 and not set(lengths).isdisjoint(shape[:2])
    }
    return {
        index
        for call in flow.calls
        if call.module in layers
        for index in range(call.begin, call.end)
    }


def _growing_s(flow: Flow, grows: Mapping[int, float]) -> float:
    """Seconds of the first step's operators that grow with the length, without their fixed cost.

    For recurrent layers, at least the forward pass's share of the backward pass counts: there no
    module's call distinguishes their operators.
    """
    spent: dict[bool, float] = defaultdict(float)
    growing: dict[bool, float] = defaultdict(float)
    first_s = 0.0
    for node in flow.nodes:
        if not node.loader:
            spent[node.backward] += node.s
        first_s += node.s if node.step == 0 else 0.0
    for index, fixed_s in grows.items():
        node = flow.nodes[index]
        growing[node.backward] += max(0.0, node.s - fixed_s)
    if 0.0 in grows.values() and spent[False]:
        growing[True] = max(growing[True], spent[True] * growing[False] / spent[False])
    return first_s * sum(growing.values()) / (sum(node.s for node in flow.nodes) or 1.0)


def _filled(look: InputLook) -> float:
    """The share of the input that is not padding."""
    return sum(look.lengths) / (look.shape[0] * look.shape[1])


def _grows(node: FlowNode, shape: tuple[int, int], parameters: Collection[tuple[int, ...]]) -> bool:
    """Whether an operator works on the whole batch in its whole length, or that length
    minus one.
    """
    if node.loader:
        return False
    rows, length = shape
    for taken in node.shapes:
        if tuple(taken) in parameters:
            continue
        for size in (length, length - 1):
            if rows * size in taken or (size in taken and taken.numel() % (rows * size) == 0):
                return True
    return False


def _of_one_length(flow: Flow, look: InputLook, parameters: Collection[tuple[int, ...]]) -> bool:
    """Whether a layer has weights for this very length.

    Such a layer takes all positions of a row at once, or works along the length, as mixers do.
    """
    rows, length = look.shape
    forward = [node for node in flow.nodes if not node.backward]
    taken = {tuple(size) for node in forward for size in node.shapes}
    widths = {
        math.prod(size) // (rows * length)
        for size in taken
        if len(size) > 2 and size[0] == rows and length in size[1:]
    }
    for node in forward:
        if node.name not in ("aten.mm", "aten.addmm") or len(node.shapes) < 2:
            continue
        (count, inner), (_, columns) = node.shapes[-2:]
        if count == rows and any(inner == length * width for width in widths if width > 1):
            return True
        if inner == length and (columns, inner) in parameters:
            along = count % rows == 0 and count % (rows * length) != 0
            if along and (count > rows or (len(look.size) == 2 and not look.words)):
                return True
    return False


def _made_at(flow: Flow, look: InputLook) -> str | None:
    """The line that gave it its length, in a loader if one made the batch."""
    notes, length = flow.notes, look.shape[1]
    if look.node < 0:
        return notes.collate or notes.samples
    index = _in_loader(flow, look.node)
    where = flow.nodes[index].where
    while True:
        index = _first_writer(flow, index)
        node = flow.nodes[index]
        where = node.where or where
        before = _maker_of_length(flow, node, length)
        if before is None or flow.nodes[before].where is None:
            given = node.loader and any(length in shape for shape in node.shapes)
            return (notes.samples if given else None) or where
        index = before


def _in_loader(flow: Flow, index: int) -> int:
    """The nearest operator of a loader that its value depends on, else itself."""
    waiting, reached = [index], {index}
    while waiting and len(reached) < NEAR:
        near = waiting.pop(0)
        node = flow.nodes[near]
        if node.loader and node.where is not None:
            return near
        fresh = [dep for dep in node.deps if dep not in reached]
        reached.update(fresh)
        waiting += fresh
    return index


def _first_writer(flow: Flow, index: int) -> int:
    """The operator that made the memory in which an operator has put its result."""
    storages = {state.key for state in flow.nodes[index].made}
    return next(
        at
        for at, node in enumerate(flow.nodes)
        if at == index or any(state.key in storages for state in node.made)
    )


def _maker_of_length(flow: Flow, node: FlowNode, length: int) -> int | None:
    """The operator whose result of this length it takes, or None if there is none."""
    taken = {
        storage
        for (storage, _), shape in zip(node.reads, node.shapes, strict=True)
        if length in shape
    }
    return next(
        (dep for dep in node.deps if any(state.key in taken for state in flow.nodes[dep].made)),
        None,
    )
