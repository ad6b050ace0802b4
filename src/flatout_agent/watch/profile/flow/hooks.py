"""The events that a `Flow` sees besides operators: calls of modules, backward passes, values on the
host.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from flatout_agent.attach.replacing import Undo, in_reverse, replaced
from flatout_agent.watch import places

READERS = ("numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "untyped_storage")
"""Methods of tensors through which values leave torch unseen by a dispatch mode."""
ENGINE = "_engine_run_backward"
"""The function of torch.autograd through which each backward pass goes."""


class Seeing(Protocol):
    """The receiver of the events; none of its methods raises."""

    def call_begins(self, module: torch.nn.Module, args: Any) -> None:
        """A module is about to be called."""

    def call_ends(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Its call has ended, with an error perhaps."""

    def pass_begins(self, args: Any, gives: bool) -> Callable[[], None] | None:
        """The engine is about to be called with these arguments; the returned function is called
        when it has ended, also with an error.
        """

    def leaves(self, tensor: torch.Tensor) -> None:
        """A value leaves torch."""


def install(flow: Seeing) -> Undo:
    """Report events to it until undone."""
    undos: list[Undo] = [replaced(torch.Tensor, name, _reader(name, flow)) for name in READERS]
    hooks = torch.nn.modules.module
    undos.append(hooks.register_module_forward_pre_hook(flow.call_begins).remove)
    undos.append(hooks.register_module_forward_hook(flow.call_ends, always_call=True).remove)
    engine = getattr(torch.autograd, ENGINE, None)
    if engine is not None:
        undos.append(replaced(torch.autograd, ENGINE, _engine(engine, flow)))
    return in_reverse(undos)


def _engine(original: Callable[..., Any], flow: Seeing) -> Callable[..., Any]:
    """Replaces the function that runs a backward pass, also for torch.autograd.grad."""

    @functools.wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        ends = flow.pass_begins(args, not kwargs.get("accumulate_grad", True))
        if ends is None:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            ends()

    return run_backward


def _reader(name: str, flow: Seeing) -> Callable[..., Any]:
    original = getattr(torch.Tensor, name)

    @functools.wraps(original)
    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(tensor, *args, **kwargs)
        if not sys._getframe(1).f_code.co_filename.startswith(places.AGENT):
            flow.leaves(tensor)
        return result

    return method
