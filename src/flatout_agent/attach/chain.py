"""Layers around a root model's call, put on and taken off in any order.

The call is wrapped through `Module._compiled_call_impl`, the slot that `Module.compile()` uses. So
the model stays the user's own object of the user's own class. Its state dict, `copy.deepcopy` and
pickle do not see the layers (torch leaves the slot out of the state), and removing the layers
restores it. The layers live only in the model: no object of ours keeps a model alive that the user
dropped.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Layer = Callable[[Callable[..., Any]], Callable[..., Any]]
Undo = Callable[[], None]
SLOT = "_compiled_call_impl"


class Depth(enum.IntEnum):
    """Where a layer sits around the model's call; a larger number is further out."""

    COMPILE = 10
    LAYOUT = 20
    PRECISION = 30
    PADDING = 40
    ROWS = 45
    WATCH = 50


class ModelCall:
    """The object in the model's slot: its own call inside the layers."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.own = model.__dict__.get(SLOT)  # the user's own model.compile()
        self.layers: list[tuple[int, Layer]] = []
        self.outermost: Callable[..., Any] = self.own or model._call_impl
        self.before: Callable[[], None] | None = None
        """Called before each call, which then uses the layers present afterwards."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        if torch.compiler.is_compiling():  # the script compiles around it: layers are not traced
            return (self.own or self.model._call_impl)(*args, **kwargs)
        if self.before is not None:
            self.before()
        return self.outermost(*args, **kwargs)

    def stand_before(self, action: Callable[[], None]) -> Undo:
        """Call `action`, which raises nothing, before each call; returns the undo function."""
        self.before = action
        self._set(self.layers)
        reference = weakref.ref(self)

        def undo() -> None:
            call = reference()
            if call is not None and call.before is action:
                call.before = None
                call._set(call.layers)

        return undo

    def wrap(self, depth: Depth, layer: Layer) -> Undo:
        """Put `layer(call) -> call` around the model's call; returns the undo function."""
        entry = (int(depth), layer)
        self._set([*self.layers, entry])
        reference = weakref.ref(self)

        def undo() -> None:
            call = reference()
            if call is not None:
                call._set([other for other in call.layers if other is not entry])

        return undo

    def _set(self, layers: list[tuple[int, Layer]]) -> None:
        self.layers = sorted(layers, key=lambda entry: entry[0])
        call = self.own if self.own is not None else self.model._call_impl
        for _, layer in self.layers:
            call = layer(call)
        self.outermost = call
        slot = self if self.layers or self.before is not None else self.own
        if slot is None:
            self.model.__dict__.pop(SLOT, None)
        else:
            self.model.__dict__[SLOT] = slot


def model_call(model: torch.nn.Module) -> ModelCall:
    """The layers around this model's call, created on first use."""
    slot = model.__dict__.get(SLOT)
    return slot if isinstance(slot, ModelCall) else ModelCall(model)


def bare(model: torch.nn.Module) -> None:
    """Remove all layers from this model's call."""
    slot = model.__dict__.get(SLOT)
    if isinstance(slot, ModelCall):
        slot.before = None
        slot._set([])


def without(model: torch.nn.Module, depth: Depth) -> None:
    """Remove the layers of this depth from this model's call."""
    slot = model.__dict__.get(SLOT)
    if isinstance(slot, ModelCall):
        slot._set([entry for entry in slot.layers if entry[0] != depth])


def compiled_by_user(model: torch.nn.Module) -> bool:
    """Whether the script itself called `model.compile()`."""
    slot = model.__dict__.get(SLOT)
    return (slot.own if isinstance(slot, ModelCall) else slot) is not None


def is_recorded(module: torch.nn.Module) -> bool:
    """Whether the script replays this module as a CUDA graph (`make_graphed_callables`)."""
    return getattr(module.__dict__.get("forward"), "__module__", None) == "torch.cuda.graphs"


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether the script compiles this module, or its forward pass, in any of torch's ways."""
    return (
        type(module).__name__ == "OptimizedModule"
        or compiled_by_user(module)
        or hasattr(getattr(module, "forward", None), "_torchdynamo_orig_callable")
    )
