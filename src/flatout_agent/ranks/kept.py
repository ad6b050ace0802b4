"""A model's state before a call made only for inspection, restored after it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from flatout_agent.speedups.forward_state import random_state

OWN = frozenset(torch.nn.Module().__dict__)
"""What torch keeps in each module: parameters, buffers, children, hooks."""
Random = list[tuple[Any, torch.Tensor]]
Left = dict[tuple[int, str], list[torch.Tensor]]
"""Number of the module, its class and attribute -> tensors. They stay alive, so that none takes
another's identity."""


def random_states() -> Random:
    """States of torch's global generators, each with the function that sets it."""
    states: Random = [(torch.set_rng_state, torch.get_rng_state())]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append((torch.cuda.set_rng_state, torch.cuda.get_rng_state()))
    return states


def set_random(states: Random) -> None:
    """Put these states back."""
    for put, state in states:
        put(state)


class Kept:
    """Buffers, plain attributes and random numbers as they are now."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        self._modules = [
            (module, dict(module.__dict__), dict(module._buffers), _contents(module))
            for module in model.modules()
        ]
        self._random = random_states()
        self._restore_randomness = random_state([])

    def put_back(self) -> None:
        """Make everything as it was."""
        for buffer, values in self._buffers:
            buffer.data.copy_(values)  # through .data: graphs that hold the buffer stay valid
        for module, attributes, buffers, contents in self._modules:
            if not _same(module.__dict__, attributes):
                module.__dict__.clear()
                module.__dict__.update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
            for container, values in contents.values():
                if _changed(container, values):
                    container.clear()
                    (container.extend if isinstance(container, list) else container.update)(values)
        self._restore_randomness()
        set_random(self._random)

    def left(self) -> Left:
        """The tensors that a call has left in attributes, and in their lists and dicts."""
        left: Left = {}
        for number, (module, attributes, _, contents) in enumerate(self._modules):
            for name, value in module.__dict__.items():
                if name in OWN:
                    continue
                old = contents[name][1] if name in contents else attributes.get(name)
                before = {id(each) for each in _tensors(old)}
                if new := [each for each in _tensors(value) if id(each) not in before]:
                    left[number, f"{type(module).__name__}.{name}"] = new
        return left

    def buffers_now(self) -> list[torch.Tensor]:
        """Copies of the floating-point buffers."""
        return [b.detach().clone() for b, _ in self._buffers if b.is_floating_point()]


def _same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return now.keys() == before.keys() and all(now[name] is before[name] for name in before)


def _changed(container: Any, before: Any) -> bool:
    if isinstance(container, dict):
        return not _same(container, before)
    return len(container) != len(before) or any(
        a is not b for a, b in zip(container, before, strict=True)
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _contents(module: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    return {
        name: (value, value.copy())
        for name, value in module.__dict__.items()
        if type(value) in (list, dict) and name not in OWN
    }
