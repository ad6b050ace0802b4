"""Finds arguments of an observed call that serve only the loss: labels are no input of a served
model.
"""

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
    """The same call with every named argument passed by name.

    Arguments of `*args` and positional-only arguments stay as they were.
    """
    items = flat.parameters(model)
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = list(items)[: len(call.args)]
    if len(names) < len(call.args) or any(items[name].kind is not plain for name in names):
        return call
    return SeenCall((), {**dict(zip(names, call.args, strict=True)), **call.kwargs}, call.target)


def without_labels(
    model: nn.Module, calls: list[SeenCall], run: Call
) -> tuple[list[SeenCall], str]:
    """The calls without the arguments that only the loss needs, and the names of these.

    An argument left out becomes the target if there is none. If the model cannot do without it, it
    is replaced by zeros.
    """
    dropped: list[str] = []
    for name, value in list(calls[0].kwargs.items()):
        if isinstance(value, flat.PLAIN) or not list(nests.leaves(value, flat.is_tensor)):
            continue
        if _only_for_loss(model, calls[0], name, run, bool(dropped)):
            calls = [_without(model, call, name) for call in calls]
            dropped.append(name)
        elif (replaced := _stood_in(calls, name, run)) is not None:
            calls = replaced
            dropped.append(name)
    return calls, ", ".join(dropped)


def _stood_in(calls: list[SeenCall], name: str, run: Call) -> list[SeenCall] | None:
    """The calls with zeros for this argument, if the outputs other than the loss stay the same."""
    if name.lower() not in LABELS or not isinstance(calls[0].kwargs[name], torch.Tensor):
        return None
    first = [replace(call, kwargs={**call.kwargs, name: None}) for call in calls]
    inputs = [flat.tensors(call) for call in first]
    labels = [call.kwargs[name] for call in calls]
    stand_in = flat.LabelStandIn(labels[0].dtype, _sizes(labels, inputs))
    others = [
        replace(
            call,
            kwargs={**call.kwargs, name: stand_in},
            target=label if call.target is None else call.target,
        )
        for call, label in zip(calls, labels, strict=True)
    ]
    if not inputs[0]:
        return None
    try:
        with_labels, without = run(calls[0]), run(others[0])
    except Exception:
        return None
    rest = [tensor for tensor in flat.named_outputs(with_labels).values() if tensor.dim()]
    same = [tensor for tensor in flat.named_outputs(without).values() if tensor.dim()]
    return others if rest and len(rest) == len(same) and all(map(_equal, rest, same)) else None


def _sizes(
    labels: list[torch.Tensor], inputs: list[tuple[torch.Tensor, ...]]
) -> tuple[tuple[int, int] | int, ...]:
    """The place of an input whose sizes are those of the labels in every call."""

    def size(dim: int) -> tuple[int, int] | int:
        for at, tensor in enumerate(inputs[0]):
            for place in range(tensor.dim()):
                pairs = zip(labels, inputs, strict=True)
                if all(label.shape[dim] == own[at].shape[place] for label, own in pairs):
                    return at, place
        return int(labels[0].shape[dim])

    return tuple(map(size, range(labels[0].dim())))


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


def _only_for_loss(
    model: nn.Module, call: SeenCall, name: str, run: Call, more_of_loss: bool
) -> bool:
    """Whether the model gives the same outputs without it, except for a loss; for labels by name,
    whether it runs at all.

    more_of_loss: the labels are already left out; a number that nothing else reads is dropped with
    them.
    """
    item = flat.parameters(model).get(name)
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
    value = call.kwargs[name]
    number = more_of_loss and isinstance(value, torch.Tensor) and not value.dim()
    return (bool(gone) or number) and len(rest) == len(same) and all(map(_equal, rest, same))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def without_cache(model: nn.Module, calls: list[SeenCall]) -> list[SeenCall]:
    """Tell Transformers models not to return the keys and values of each layer."""
    if "use_cache" not in flat.parameters(model) or "use_cache" in calls[0].kwargs:
        return calls
    return [replace(call, kwargs={**call.kwargs, "use_cache": False}) for call in calls]
