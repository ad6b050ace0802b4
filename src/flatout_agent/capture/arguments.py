"""Which arguments of a seen call serve only the loss: labels are no input of a served model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from flatout_agent.capture import flat
from flatout_agent.capture.calls import SeenCall
from flatout_agent.speedups import nests

LABELS = frozenset({
    "label", "labels", "target", "targets", "tgt_labels", "y", "y_true", "gt", "ground_truth",
    "start_positions", "end_positions", "next_sentence_label", "decoder_labels",
})  # fmt: skip
Call = Callable[[SeenCall], Any]


def named(model: nn.Module, call: SeenCall) -> SeenCall:
    """The same call with every argument that has a name given by name.

    Forward's of `*args` or of positional-only arguments stay as they were.
    """
    items = flat.parameters(model)
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = list(items)[: len(call.args)]
    if len(names) < len(call.args) or any(items[name].kind is not plain for name in names):
        return call
    return SeenCall((), {**dict(zip(names, call.args, strict=True)), **call.kwargs}, call.target)


def without_labels(model: nn.Module, calls: list[SeenCall], run: Call) -> tuple[list[SeenCall], str]:
    """The calls without what only the loss needs, and their names.

    What was left out becomes the target where there is none.
    """
    dropped = []
    for name, value in list(calls[0].kwargs.items()):
        if isinstance(value, flat.PLAIN) or not list(nests.leaves(value, flat.is_tensor)):
            continue
        if _only_for_loss(model, calls[0], name, run):
            calls = [_without(model, call, name) for call in calls]
            dropped.append(name)
    return calls, ", ".join(dropped)


def _without(model: nn.Module, call: SeenCall, name: str) -> SeenCall:
    kwargs = dict(call.kwargs)
    value = kwargs.pop(name)
    item = flat.parameters(model).get(name)
    if item is not None and item.default is inspect.Parameter.empty:
        kwargs[name] = None  # required: None says as much
    target = call.target
    if target is None and isinstance(value, torch.Tensor):
        target = value
    return replace(call, kwargs=kwargs, target=target)


def _only_for_loss(model: nn.Module, call: SeenCall, name: str, run: Call) -> bool:
    """Without it the model answers the same, but for a loss; of labels by name: it answers."""
    item = flat.parameters(model).get(name)
    if item is not None and item.kind is inspect.Parameter.VAR_KEYWORD:
        return False
    by_name = name.lower() in LABELS
    required = item is not None and item.default is inspect.Parameter.empty
    try:
        without = flat.named_outputs(run(_without(model, call, name)))
    except Exception:
        return False
    if not any(tensor.dim() for tensor in without.values()):
        return False
    if by_name and not required:
        return True
    outputs = list(flat.named_outputs(run(call)).values())
    gone = [tensor for tensor in outputs if not tensor.dim()]
    rest = [tensor for tensor in outputs if tensor.dim()]
    same = [tensor for tensor in without.values() if tensor.dim()]
    return bool(gone) and len(rest) == len(same) and all(map(_equal, rest, same))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def without_cache(model: nn.Module, calls: list[SeenCall]) -> list[SeenCall]:
    """Transformers that would return the keys and values of each layer are told not to."""
    if "use_cache" not in flat.parameters(model) or "use_cache" in calls[0].kwargs:
        return calls
    return [replace(call, kwargs={**call.kwargs, "use_cache": False}) for call in calls]
