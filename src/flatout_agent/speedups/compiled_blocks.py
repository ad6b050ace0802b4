"""The repeated blocks of a model, compiled: the code of the first one serves all like blocks."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import Depth, Layer, Undo, model_call

if TYPE_CHECKING:
    import torch

    from flatout_agent.speedups.compiling import Attempts, Code


def put_on(attempts: Attempts, groups: list[list[torch.nn.Module]], codes: Sequence[Code]) -> Undo:
    """Run the training calls of each group's blocks through its code; returns the undo function.

    The codes come from `compiling.run_module`.
    """
    undos: list[Undo] = []
    for blocks, code in zip(groups, codes, strict=True):
        change = _unchanged if _share_keys(blocks) else _without_new_cache
        for block in blocks:
            layer = _layer(attempts, weakref.ref(block), code, change)
            undos.append(model_call(block).wrap(Depth.COMPILE, layer))

    def undo() -> None:
        for take_off in undos:
            take_off()

    return undo


def _layer(
    attempts: Attempts,
    reference: weakref.ref[torch.nn.Module],
    code: Code,
    change: Callable[[Any], Any],
) -> Layer:
    """The layer around the block's own call: compiled in training, as written in evaluation.

    `change` is applied to each argument of the compiled call.
    """
    import torch

    def around(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            block: Any = reference()
            trains = block.training and torch.is_grad_enabled()
            if attempts.given_up or attempts.as_written or not trains:
                return own(*args, **kwargs)
            changed_args = tuple(map(change, args))
            changed_kwargs = {name: change(value) for name, value in kwargs.items()}
            try:
                if attempts.inside:
                    return code(block, *changed_args, **changed_kwargs)
                # recomputed in the backward pass, or called outside the step
                return attempts.run(code, block, *changed_args, **changed_kwargs)
            except attempts.errors as error:
                attempts.give_up(error)
                return own(*args, **kwargs)

        return call

    return around


def is_cache(value: Any) -> bool:
    """Whether this is a generation cache of Hugging Face's."""
    caches = sys.modules.get("transformers.cache_utils")
    return caches is not None and isinstance(value, caches.Cache)


def _unchanged(value: Any) -> Any:
    return value


def _without_new_cache(value: Any) -> Any:
    """None for a generation cache that is still empty.

    Hugging Face models create one in training too. A block would write to it under its own index,
    and torch recompiles a function for each integer that it reads, up to its limit of 8.
    """
    if not is_cache(value):
        return value
    try:
        return None if value.get_seq_length() == 0 else value
    except Exception:  # a cache without lengths
        return value


def _share_keys(blocks: list[torch.nn.Module]) -> bool:
    """Whether blocks read from the cache what others wrote in the same pass (Gemma 3n)."""
    parts = (part for block in blocks for part in block.modules())
    return any(getattr(part, "is_kv_shared_layer", False) is True for part in parts)
