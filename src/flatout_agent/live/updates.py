"""Compare what an optimizer does to the weights, as written and under a boost, from one gradient.

After the program's own step the weights and the optimizer's state go back to where they were, the
step is taken once more under the boost, and then all is put back as the program's own step left it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flatout_agent.live.calls import Made

Apply = Callable[[], Callable[[], None]]
"""Switches the boost on; returns the way back."""


class Before:
    """Weights and optimizer state before a step of the program."""

    def __init__(self, torch: Any, optimizer: Any) -> None:
        self.torch, self.optimizer = torch, optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.weights = [p.detach().clone() for p in self.parameters]
        self.state = _copied(torch, optimizer)

    def twice(self, apply: Apply) -> tuple[Made, Made]:
        """(the program's own update, the boost's); called when the program's step has ended."""
        optimizer, torch = self.optimizer, self.torch
        after = [p.detach().clone() for p in self.parameters]
        own_state = dict(optimizer.state)  # the very tensors: the boost gets copies
        written = self._update()
        kind = type(optimizer)
        step = kind.step.__wrapped__ if getattr(kind.step, "hooked", False) else kind.step
        hooks = optimizer._optimizer_step_pre_hooks
        own_hooks = set(hooks)
        try:
            self._put(self.weights, self.state)
            undo = apply()
            try:
                for key in [key for key in hooks if key not in own_hooks]:
                    hooks[key](optimizer, (optimizer,), {})  # the boost's: it lays out gradients
                with torch.no_grad():
                    step(optimizer)
                boosted = self._update()
            finally:
                undo()
        finally:
            self._put(after, {})
            optimizer.state.update(own_state)
        return written, boosted

    def _update(self) -> Made:
        pairs = zip(self.parameters, self.weights, strict=True)
        changes = [p.detach() - before for p, before in pairs]
        return Made([], changes, [f"parameter {number}" for number in range(len(changes))])

    def _put(self, weights: list[Any], state: dict[Any, dict[str, Any]]) -> None:
        for parameter, value in zip(self.parameters, weights, strict=True):
            parameter.data.copy_(value)
        self.optimizer.state.clear()
        for parameter, values in state.items():
            self.optimizer.state[parameter] = {
                name: value.clone() if isinstance(value, self.torch.Tensor) else value
                for name, value in values.items()
            }


def _copied(torch: Any, optimizer: Any) -> dict[Any, dict[str, Any]]:
    return {
        parameter: {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        for parameter, values in optimizer.state.items()
    }
