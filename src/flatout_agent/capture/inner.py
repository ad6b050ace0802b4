"""A module inside the one that the script calls, with the calls that it receives there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from flatout_agent.capture.calls import SeenCall, copied

MOST_SHARE = 0.5
"""A module with more than this share of the parameters counts as the model itself."""
Call = Callable[[nn.Module, SeenCall], Any]


def calls_of(root: nn.Module, child: nn.Module, calls: list[SeenCall], run: Call) -> list[SeenCall]:
    """The calls of `child` while `root` gets these calls; empty if it is not called once
    in each.
    """
    found: list[SeenCall] = []
    target: list[Any] = [None]

    def seen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        own_args, own_kwargs = copied((args, kwargs))
        found.append(SeenCall(own_args, own_kwargs, target[0]))

    handle = child.register_forward_pre_hook(seen, with_kwargs=True)
    try:
        for call in calls:
            target[0] = call.target
            run(root, call)
    finally:
        handle.remove()
    return found if len(found) == len(calls) else []


def largest(root: nn.Module) -> nn.Module | None:
    """The child that holds most of the parameters, or None if none does."""
    whole = size(root)
    child = max(root.children(), key=size, default=None)
    return child if child is not None and size(child) > MOST_SHARE * whole else None


def named(root: nn.Module, name: str) -> nn.Module | None:
    """The outermost module inside with this name or class."""
    modules: Iterator[tuple[str, nn.Module]] = root.named_modules()
    for path, module in modules:
        if module is not root and name in (path, path.rpartition(".")[2], type(module).__name__):
            return module
    return None


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
