"""The Job: the user's training program seen from inside, and the places where a boost may act.

Boosts and watchers get this object. `discovery` fills in what it knows of the program.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flatout_agent.attach.chain import Depth, Layer, Undo, model_call
from flatout_agent.attach.handover import Handover

if TYPE_CHECKING:
    import torch

BatchLayer = Callable[[Iterator[Any]], Iterator[Any]]
T = TypeVar("T")


class WeakList(Generic[T]):
    """Objects of the program in the order seen, without those that the program dropped."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[Any]] = []

    def append(self, value: T) -> None:
        self._references.append(weakref.ref(value))

    def __iter__(self) -> Iterator[T]:
        objects = [reference() for reference in self._references]
        return iter([value for value in objects if value is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, value: object) -> bool:
        return any(other is value for other in self)

    def index(self, value: object) -> int:
        """The number of objects seen before `value`. Raises ValueError if it was not seen."""
        for position, reference in enumerate(self._references):
            if reference() is value:
                return position
        raise ValueError("not seen")


class Job:
    """One training program: its root models, optimizers and loaders, in the order seen."""

    def __init__(self) -> None:
        import torch  # the host loads this module without torch

        self._graph_task: Callable[[], int] | None
        self._graph_task = getattr(torch._C, "_current_graph_task_id", None)
        self.models: WeakList[torch.nn.Module] = WeakList()
        self.frozen: WeakList[torch.nn.Module] = WeakList()
        """Models that each step calls and does not train: a teacher, a reference."""
        self.optimizers: WeakList[torch.optim.Optimizer] = WeakList()
        self.loaders: WeakList[Any] = WeakList()
        self.steps = 0
        """Steps taken so far: calls of the leading optimizer's `step`, or the updates of a program
        that changes its weights itself.
        """
        self.thread: int | None = None
        """The thread that took the first step, where the agent came to a running program."""
        self.by_hand = False
        """Whether no optimizer steps and the program changes its weights itself: a step ends when
        the next training call begins, or the next backward pass if no model is called.
        """
        self.hand_weights: Callable[[], list[torch.Tensor]] = list
        """The weights that it changes, as far as known."""
        self.graph_created = False
        """Whether the last call of `backward` created a graph, so that another may follow it."""
        self.backwards = 0
        """Backward passes so far, counted until an optimizer steps."""
        self.step_callbacks: list[Callable[[], None]] = []
        self._batch_layers: weakref.WeakKeyDictionary[Any, list[BatchLayer]] = (
            weakref.WeakKeyDictionary()
        )
        self.handovers: weakref.WeakSet[Handover] | None = None
        """Running epochs, if loaders may be switched in the middle of one, else None."""
        self._iterators: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def first_device(self) -> torch.device | None:
        """The device of the first root model's parameters, which need not be the current one.

        Without a model, that of the weights that the program changes itself.
        """
        for model in self.models:
            for parameter in model.parameters():
                return parameter.device
        for weight in self.hand_weights():
            return weight.device
        return None

    @property
    def device(self) -> str:
        """Its type: cpu, cuda, xpu, mps."""
        device = self.first_device
        return str(device.type) if device is not None else "cpu"

    def after_step(self, callback: Callable[[], None]) -> Undo:
        """Call `callback` after each step; returns a function that stops this."""
        self.step_callbacks = [*self.step_callbacks, callback]

        def undo() -> None:
            self.step_callbacks = [other for other in self.step_callbacks if other is not callback]

        return undo

    def wrap_call(self, model: torch.nn.Module, depth: Depth, layer: Layer) -> Undo:
        """Put `layer(call) -> call` around a root model's call; it holds from the next call on.

        Within `apply` at Moment.MODEL, the next call is the one that is about to happen.
        """
        return model_call(model).wrap(depth, layer)

    def wrap_batches(self, loader: Any, layer: BatchLayer) -> Undo:
        """Put `layer(iterator) -> iterator` around what each `iter(loader)` returns from now on."""
        layers = self._batch_layers.setdefault(loader, [])
        layers.append(layer)
        return lambda: layers.remove(layer) if layer in layers else None

    def batches(self, loader: Any, iterator: Iterator[Any]) -> Iterator[Any]:
        """`iterator` inside the layers put around this loader, as the program gets it."""
        if self.handovers is None:
            return self.layered(loader, iterator)
        handover = Handover(self, loader, iterator)
        self.handovers.add(handover)
        return handover

    def layers(self, loader: Any) -> tuple[BatchLayer, ...]:
        """The layers around this loader's iterators, the innermost first."""
        return tuple(self._batch_layers.get(loader, ()))

    def layered(self, loader: Any, iterator: Iterator[Any]) -> Iterator[Any]:
        """`iterator` inside these layers; a layer that fails is left out."""
        for layer in self.layers(loader):
            with contextlib.suppress(Exception):
                iterator = layer(iterator)
        return iterator

    def hand_over(self) -> None:
        """Let every running epoch go on under its loader's present settings."""
        with contextlib.ExitStack() as stack:  # one that raises does not stop the others
            for handover in list(self.handovers or ()):
                stack.callback(handover.switch)

    def iterating(self, loader: Any, iterator: Any) -> None:
        """Record that `loader` has made `iterator`, so it can be found while it runs."""
        persistent = getattr(loader, "_iterator", None) is iterator
        iterator._flatout_loader = weakref.ref(loader)
        if not persistent:  # else a cycle: the workers would wait for the garbage collector
            iterator._flatout_held = loader  # the program may hold nothing but the iterator
        self._iterators.setdefault(loader, weakref.WeakSet()).add(iterator)

    def iterators(self, loader: Any) -> Iterator[Any]:
        """The loader's own iterators that the program still holds, without any layer."""
        return iter(list(self._iterators.get(loader, ())))

    def own_iterators(self, loader: Any) -> list[Any]:
        """Its iterators that fetch in this process, in PyTorch's way."""
        from torch.utils.data import dataloader

        kind = dataloader._SingleProcessDataLoaderIter
        return [iterator for iterator in self.iterators(loader) if type(iterator) is kind]

    def inside_backward(self) -> bool:
        """Whether a backward pass is under way in this thread.

        Activation checkpointing recomputes parts of the model in one, and the reentrant kind has
        its own backward pass in it.
        """
        return self._graph_task is not None and self._graph_task() != -1
