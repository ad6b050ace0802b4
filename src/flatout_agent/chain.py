"""Layers around one callable or iterator, put on and taken off in any order.

A root model's call is wrapped through `Module._compiled_call_impl`: the slot that
`Module.compile()` uses. So the model stays the user's own object of the user's own class, its
state dict, `copy.deepcopy` and pickle see nothing of it, and removing the layers restores it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Layer = Callable[[Callable[..., Any]], Callable[..., Any]]
Undo = Callable[[], None]


class Depth(enum.IntEnum):
    """Where a layer sits around the model's call; a larger number is further out."""

    COMPILE = 10
    LAYOUT = 20
    PRECISION = 30
    EVALUATION = 40
    WATCH = 50


class ModelCall:
    """The layers around one model's call."""

    SLOT = "_compiled_call_impl"

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.own = model.__dict__.get(self.SLOT)  # the user's own model.compile()
        self.layers: list[tuple[int, Layer]] = []

    def wrap(self, depth: Depth, layer: Layer) -> Undo:
        """Put `layer(call) -> call` around the model's call; returns the way back."""
        entry = (int(depth), layer)
        self.layers.append(entry)
        self.layers.sort(key=lambda item: item[0])
        self._rebuild()

        def undo() -> None:
            if any(item is entry for item in self.layers):
                self.layers = [item for item in self.layers if item is not entry]
                self._rebuild()

        return undo

    def _rebuild(self) -> None:
        if not self.layers and self.own is None:
            self.model.__dict__.pop(self.SLOT, None)
            return
        call = self.own if self.own is not None else self.model._call_impl
        for _, layer in self.layers:
            call = layer(call)
        self.model.__dict__[self.SLOT] = call
