"""The Job: the user's training program as seen from inside, and the places where a boost may act.

Boosts and watchers get this object. What it knows of the program is filled in by `discovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.chain import Depth, Layer, ModelCall, Undo

if TYPE_CHECKING:
    import torch

BatchLayer = Callable[[Iterator[Any]], Iterator[Any]]


class Job:
    """One training program: its root models, optimizers and loaders, in the order seen."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.loaders: list[Any] = []
        self.steps = 0
        """Steps taken so far: calls of the first optimizer's `step`."""
        self.step_callbacks: list[Callable[[], None]] = []
        self._calls: dict[int, ModelCall] = {}
        self._batch_layers: dict[int, list[BatchLayer]] = {}

    @property
    def device(self) -> str:
        """Type of the device of the first root model's parameters: cpu, cuda, xpu, mps."""
        for model in self.models:
            for parameter in model.parameters():
                return str(parameter.device.type)
        return "cpu"

    def after_step(self, callback: Callable[[], None]) -> Undo:
        """Call `callback` after each step; returns the way to stop that."""
        self.step_callbacks = [*self.step_callbacks, callback]

        def undo() -> None:
            self.step_callbacks = [item for item in self.step_callbacks if item is not callback]

        return undo

    def wrap_call(self, model: torch.nn.Module, depth: Depth, layer: Layer) -> Undo:
        """Put `layer(call) -> call` around a root model's call; it holds from the next call on.

        Within `apply` at Moment.MODEL that next call is the very one that is about to happen.
        """
        call = self._calls.get(id(model))
        if call is None:
            call = self._calls[id(model)] = ModelCall(model)
        return call.wrap(depth, layer)

    def wrap_batches(self, loader: Any, layer: BatchLayer) -> Undo:
        """Put `layer(iterator) -> iterator` around what each `iter(loader)` returns from now on."""
        layers = self._batch_layers.setdefault(id(loader), [])
        layers.append(layer)
        return lambda: layers.remove(layer) if layer in layers else None

    def batches(self, loader: Any, iterator: Iterator[Any]) -> Iterator[Any]:
        """`iterator` inside the layers put around this loader."""
        for layer in self._batch_layers.get(id(loader), ()):
            iterator = layer(iterator)
        return iterator
