"""Memory layout of images: channels-last where the model convolves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout_agent.speedups import channels_last
from flatout_train.errors import UsageError

LossCall = Callable[[Any], Tensor]
NAMES = ("auto", "channels_last", "contiguous")


@dataclass(frozen=True)
class ModelLayout:
    """The chosen layout, how to apply it and how to undo it."""

    name: str
    """ "channels_last" or "contiguous" """
    reason: str
    place: Callable[[Any], Any]
    """Batch -> batch in that layout; nests keep their types; only other tensors are copied."""
    undo: Callable[[], None]
    around: Callable[[LossCall], LossCall]
    """`around(call)` repeats the call in the contiguous layout if the model rejects this one."""
    note: Callable[[], str]
    """The current layout, and why."""


def choose(layout: str, model: nn.Module) -> ModelLayout:
    """The layout for this model. Raises UsageError for an unknown value.

    "auto" is channels-last for models that convolve images or volumes. Only batches are converted:
    weights keep their format (each convolution reorders its own, which costs little compared with
    the activations), so that checkpoints, optimizer state and `safetensors`, which refuses other
    formats, are unaffected.
    """
    if layout not in NAMES:
        raise UsageError(f"layout={layout!r} is unknown: use one of {', '.join(NAMES)}")
    if layout == "contiguous":
        return _contiguous("requested")
    layers = channels_last.convolutions(model)
    dimensions = {module.weight.dim() for module in layers}
    if not layers:
        return _contiguous("the model has no 2-d or 3-d convolution")
    if layout == "auto":
        if all(module.weight.dtype == torch.float64 for module in layers):
            return _contiguous("float64 convolutions have no channels-last kernels")
        if any(module.weight.device.type == "mps" for module in layers):
            return _contiguous("Metal's convolutions expect the contiguous layout")
    what = "images" if dimensions == {4} else "volumes" if dimensions == {5} else "images, volumes"
    placing = _Placing(model, dimensions, f"{len(layers)} convolutions of {what}")
    return ModelLayout(
        "channels_last", placing.reason, placing.place, placing.stop, placing.around, placing.note
    )


def _contiguous(reason: str) -> ModelLayout:
    return ModelLayout(
        "contiguous",
        reason,
        lambda batch: batch,
        lambda: None,
        lambda call: call,
        lambda: f"contiguous: {reason}",
    )


class _Placing(channels_last.ChannelsLast):
    """Batches in channels-last, until the model turns out to need the contiguous layout."""

    def __init__(self, model: nn.Module, dimensions: set[int], reason: str) -> None:
        super().__init__(model, dimensions)
        self.reason = reason
        self.proven = False
        """A call has succeeded."""
        self.stopped = False

    def place(self, batch: Any) -> Any:
        return batch if self.refused or self.stopped else self.to(batch)

    def stop(self) -> None:
        self.stopped = True

    def note(self) -> str:
        off = self.refused or ("closed" if self.stopped else "")
        return f"contiguous: {off}" if off else f"channels_last: {self.reason}"

    def around(self, call: LossCall) -> LossCall:
        def checked(batch: Any) -> Tensor:
            if self.proven or self.refused or self.stopped:
                return call(batch)
            loss: Tensor = self.call(lambda: call(batch), lambda: call(self.back(batch)), keep=True)
            self.proven = not self.refused
            return loss

        return checked
