"""An optimizer's step that runs out of memory, repeated if that is still possible."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor

from flatout_train.out_of_memory import is_out_of_memory, let_go

_INCONSISTENT = (
    "the optimizer ran out of memory in the middle of its step: some weights are updated, others "
    "are not. Load the last checkpoint, and create the optimizer with fused=True or foreach=False, "
    "which need little memory beyond its state"
)
_TOO_LARGE = (
    "the optimizer's step does not fit into the memory of {device}; nothing of it was applied: "
    "weights and state are as before the step. Use an optimizer with less state (SGD without "
    "momentum, Adafactor), bfloat16 weights or a smaller model"
)

Mark = tuple[MutableMapping[str, Any], dict[str, tuple[Any, int]]]
"""A dict of numbers and tensors, and its earlier content: each value, with a tensor's version."""


def step_optimizer(optimizer: torch.optim.Optimizer, take: Callable[[], object]) -> None:
    """Call `take()`, which steps the optimizer; if memory runs out, free some and call it again.

    That is possible while nothing was applied: an optimizer allocates memory for its state, in the
    first step, and for temporaries. State that the failed call created is dropped, and the second
    try, like all later steps, runs without `foreach`, whose temporaries are as large as all
    parameters. Whether anything was applied shows in the first parameter of each group, which every
    optimizer of torch changes first.

    Raises RuntimeError, chained to the device's error, if weights or state had already changed, and
    torch.OutOfMemoryError if the second try also fails, with nothing changed.
    """
    states, marks = len(optimizer.state), _marks(optimizer)
    try:
        take()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failure = error
    else:
        return
    if not _is_untouched(optimizer, states, marks):
        raise RuntimeError(_INCONSISTENT) from failure
    device = optimizer.param_groups[0]["params"][0].device
    let_go(failure, device)
    _use_less(optimizer)
    marks = _marks(optimizer)
    try:
        take()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if not _is_untouched(optimizer, states, marks):
            raise RuntimeError(_INCONSISTENT) from error
        raise torch.OutOfMemoryError(_TOO_LARGE.format(device=device)) from error


def _marks(optimizer: torch.optim.Optimizer) -> list[Mark]:
    """For each group: its numbers, and its first parameter with a gradient, with its state."""
    marks: list[Mark] = []
    for group in optimizer.param_groups:
        marks.append(_mark(group))
        for parameter in group["params"]:
            if parameter.grad is not None:
                marks.append(_mark({"parameter": parameter}))
                if parameter in optimizer.state:
                    marks.append(_mark(optimizer.state[parameter]))
                break
    return marks


def _mark(holder: MutableMapping[str, Any]) -> Mark:
    return holder, {
        name: (value, value._version if isinstance(value, Tensor) else 0)
        for name, value in holder.items()
        if isinstance(value, Tensor | int | float)
    }


def _is_untouched(optimizer: torch.optim.Optimizer, states: int, marks: list[Mark]) -> bool:
    """Whether nothing was applied; if so, state that was created since is dropped."""
    if any(not _is_same(holder, before) for holder, before in marks):
        return False
    if any(len(_kinds(group["params"])) > 1 for group in optimizer.param_groups):
        return False  # kinds are updated one after the other; the first parameter is of one kind
    for parameter in list(optimizer.state)[states:]:
        del optimizer.state[parameter]
    return True


def _is_same(holder: MutableMapping[str, Any], before: dict[str, tuple[Any, int]]) -> bool:
    now = _mark(holder)[1]
    return now.keys() == before.keys() and all(
        value is old and version == counted if isinstance(old, Tensor) else value == old
        for (value, version), (old, counted) in zip(
            (now[name] for name in before), before.values(), strict=True
        )
    )


def _kinds(parameters: list[Tensor]) -> set[tuple[torch.device, torch.dtype]]:
    return {
        (parameter.device, parameter.dtype)
        for parameter in parameters
        if parameter.grad is not None
    }


def _use_less(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if "foreach" in group and not any(
            group.get(name) for name in ("fused", "capturable", "differentiable")
        ):
            group["foreach"] = False
