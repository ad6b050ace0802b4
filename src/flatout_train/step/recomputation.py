"""Activation checkpointing of a model's repeated blocks, enabled and disabled without a trace.

Each block's forward runs under `torch.utils.checkpoint`: its activations are not stored for the
backward pass but recomputed there. Parameters, names, hooks and state dict stay as they are, since
the block only changes its class to a subclass with another `forward`; a block that
`block.compile()` or the whole model's compilation has compiled is recompiled with it.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from flatout_agent.speedups.compiled_blocks import is_cache
from flatout_agent.speedups.repeated_blocks import repeated_blocks
from flatout_train.errors import UsageError


def recompute(model: nn.Module) -> Callable[[], None]:
    """Checkpoint the activations of the model's repeated blocks in training; returns the undo.

    Gradients are bit-identical if the block's operations are deterministic: torch's, Python's and
    NumPy's random states are restored for the second run, and running statistics of normalisation
    layers count each batch once. Additions of a Hugging Face block to a generation cache are
    dropped, as by its own checkpointing. Blocks with an instance attribute `forward` and scripted
    blocks stay as they are. A copy or pickle of the model is without checkpointing.

    Raises UsageError if there is no repeated block.
    """
    blocks = [
        block
        for block in repeated_blocks(model)
        if "forward" not in vars(block) and not isinstance(block, torch.jit.ScriptModule)
    ]
    if not blocks:
        raise UsageError(
            f"{type(model).__name__} has no repeated blocks to recompute: call "
            "torch.utils.checkpoint in its forward, or pass recompute=False"
        )
    classes: list[Any] = [type(block) for block in blocks]
    for block, cls in zip(blocks, classes, strict=True):
        object.__setattr__(block, "__class__", _recomputed(cls))

    def undo() -> None:
        for block, cls in zip(blocks, classes, strict=True):
            if type(block) is _recomputed(cls):
                object.__setattr__(block, "__class__", cls)

    return undo


_reconstructor: Any = vars(copyreg)["_reconstructor"]
"""The constructor that a pickle names; it works whatever the object's class is now."""


@functools.cache
def _recomputed(cls: type[nn.Module]) -> type[nn.Module]:
    """`cls` with its forward under checkpoint.

    Created once: the compiler distinguishes classes, and would compile a copy again.
    """
    original: Callable[..., Any] = cls.forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return original(self, *args, **kwargs)
        compiling = torch.compiler.is_compiling()
        if compiling and _running(self):  # a compiled checkpoint may not write to buffers
            return original(self, *args, **kwargs)

        def run(*inputs: Any) -> Any:
            return original(self, *inputs[:-1], **inputs[-1])

        args = tuple(_without_cache(value) for value in args)
        kwargs = {name: _without_cache(value) for name, value in kwargs.items()}
        # keywords are passed as one argument: checkpoint finds the devices of arguments only
        if compiling:
            return checkpoint(run, *args, kwargs, use_reentrant=False)
        contexts = contextlib.nullcontext(), _Again(self)
        return checkpoint(run, *args, kwargs, use_reentrant=False, context_fn=lambda: contexts)

    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:  # noqa: N807
        reduced: Any = cls.__reduce_ex__(self, protocol)
        if reduced[0].__name__ != "__newobj__":
            return reduced
        return (_reconstructor, (cls, object, None), *reduced[2:])  # __newobj__ needs type(self)

    members = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__reduce_ex__": __reduce_ex__,
        "forward": functools.wraps(original)(forward),
    }
    meta: Any = type(cls)
    return meta(cls.__name__, (cls,), members)  # type: ignore[no-any-return]


def _without_cache(value: Any) -> Any:
    """None for a generation cache: the second run would write to it once more."""
    return None if is_cache(value) else value


def _running(block: nn.Module) -> list[_NormBase]:
    """The block's normalisations that keep running statistics."""
    return [
        module
        for module in block.modules()
        if isinstance(module, _NormBase) and module.running_mean is not None
    ]


class _Again(AbstractContextManager[None]):
    """The recomputation: Python's and NumPy's random states of the first run, no statistics kept.

    torch's random states are restored by checkpoint itself. Each further backward enters it again.
    """

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self._first = _host_random()
        self._since: Any = None
        self._statistics: list[tuple[_NormBase, dict[str, Any]]] = []

    def __enter__(self) -> None:
        self._since = _host_random()
        _set_host_random(self._first)
        for norm in _running(self._block):
            self._statistics.append((norm, dict(norm._buffers)))
            copies = {name: None if b is None else b.clone() for name, b in norm._buffers.items()}
            norm._buffers.update(copies)

    def __exit__(self, *error: Any) -> None:
        while self._statistics:
            norm, buffers = self._statistics.pop()
            norm._buffers.update(buffers)
        _set_host_random(self._since)


def _host_random() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy.random")
    return random.getstate(), None if numpy is None else numpy.get_state()


def _set_host_random(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy.random"].set_state(states[1])
