"""A model's state before a call made only for inspection, restored after it."""

from __future__ import annotations

from typing import Any

import torch

from flatout_agent.speedups.samples.samples import Randomness

Random = list[tuple[Any, torch.Tensor]]


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
        self._of_the_process = Randomness()

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
                if len(container) != len(values):
                    container.clear()
                    (container.extend if isinstance(container, list) else container.update)(values)
        self._of_the_process.put_back()
        set_random(self._random)

    def written(self) -> dict[tuple[str, str], int]:
        """Attributes that hold another tensor than before, or more values, with their current
        identity.
        """
        changed: dict[tuple[str, str], int] = {}
        for module, attributes, _, contents in self._modules:
            for name, value in module.__dict__.items():
                old = attributes.get(name)
                if value is not old and isinstance(value, torch.Tensor):
                    changed[type(module).__name__, name] = id(value)
            for name, (container, values) in contents.items():
                if len(container) != len(values):
                    changed[type(module).__name__, name] = -1
        return changed

    def buffers_now(self) -> list[torch.Tensor]:
        """Copies of the floating-point buffers."""
        return [b.detach().clone() for b, _ in self._buffers if b.is_floating_point()]


def _same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return now.keys() == before.keys() and all(now[name] is before[name] for name in before)


def _contents(module: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    return {
        name: (value, value.copy())
        for name, value in module.__dict__.items()
        if type(value) in (list, dict) and not name.startswith("_")
    }
