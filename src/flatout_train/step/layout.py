"""Memory layout of images: channels-last where the model convolves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout_agent.speedups import forward_state, nests
from flatout_train.errors import UsageError

LossCall = Callable[[Any], Tensor]
NAMES = ("auto", "channels_last", "contiguous")
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By number of dimensions: images [N, C, H, W], volumes [N, C, D, H, W]."""
CONVOLUTIONS = {
    4: (nn.Conv2d, nn.ConvTranspose2d),
    5: (nn.Conv3d, nn.ConvTranspose3d),
}


@dataclass(frozen=True)
class Layout:
    """The layout that was chosen, and how to get there and back."""

    name: str
    """ "channels_last" or "contiguous" """
    reason: str
    place: Callable[[Any], Any]
    """Batch -> batch in that layout; nests keep their types, what is in place is not copied."""
    undo: Callable[[], None]
    around: Callable[[LossCall], LossCall]
    """`around(call)` makes the call again in the usual layout where the model cannot take this."""
    note: Callable[[], str]
    """What holds now, and why."""


def choose(asked: str, model: nn.Module) -> Layout:
    """The layout for this model. Raises UsageError for a word that is not known.

    "auto" is channels-last for models that convolve images or volumes. Only batches are converted:
    weights keep their format (each convolution reorders its own, which is little beside the
    activations), so that checkpoints, optimizer state and `safetensors`, which refuses other
    formats, are as without it.
    """
    if asked not in NAMES:
        raise UsageError(f"layout={asked!r} is not known: it is one of {', '.join(NAMES)}")
    if asked == "contiguous":
        return _contiguous("asked for")
    found = convolutions(model)
    dimensions = {module.weight.dim() for module in found}
    if not found:
        return _contiguous("the model has no 2-d or 3-d convolution")
    if asked == "auto":
        if all(module.weight.dtype == torch.float64 for module in found):
            return _contiguous("float64 convolutions have no channels-last kernels")
        if any(module.weight.device.type == "mps" for module in found):
            return _contiguous("Metal's convolutions take the usual layout")
    what = "images" if dimensions == {4} else "volumes" if dimensions == {5} else "images, volumes"
    placing = _Placing(model, dimensions, f"{len(found)} convolutions of {what}")
    return Layout(
        "channels_last", placing.reason, placing.place, placing.stop, placing.around, placing.note
    )


def convolutions(model: nn.Module) -> list[Any]:
    """The model's convolutions of images and volumes."""
    kinds = tuple(kind for group in CONVOLUTIONS.values() for kind in group)
    return [module for module in model.modules() if isinstance(module, kinds)]


def _contiguous(reason: str) -> Layout:
    return Layout(
        "contiguous",
        reason,
        lambda batch: batch,
        lambda: None,
        lambda call: call,
        lambda: f"contiguous: {reason}",
    )


class _Placing:
    """Batches in channels-last, until the model turns out to need the usual layout."""

    def __init__(self, model: nn.Module, dimensions: set[int], reason: str) -> None:
        self.model, self.reason = model, reason
        self.formats = {dim: FORMATS[dim] for dim in dimensions}
        self.proven = False
        """A call went through."""
        self.off = ""
        """Why batches stay as they are."""

    def place(self, batch: Any) -> Any:
        return batch if self.off else nests.change(batch, self._to)

    def stop(self) -> None:
        self.off = self.off or "closed"

    def note(self) -> str:
        return f"contiguous: {self.off}" if self.off else f"channels_last: {self.reason}"

    def around(self, call: LossCall) -> LossCall:
        def checked(batch: Any) -> Tensor:
            if self.proven or self.off:
                return call(batch)
            restore = forward_state.keep(torch, [self.model])
            try:
                loss = call(batch)
            except RuntimeError as error:
                if "view size is not compatible" not in str(error):
                    raise
                self.off = "the model uses .view() where only the usual layout will do"
            else:
                self.proven = True
                return loss
            restore()
            return call(nests.change(batch, self._back))

        return checked

    def _to(self, tensor: Any) -> Any:
        wanted = self.formats.get(tensor.dim())
        if wanted is None or not tensor.is_floating_point() or tensor.layout != torch.strided:
            return tensor
        # Not contiguous(): one channel counts as contiguous in both, and kernels go by strides.
        return tensor.to(memory_format=wanted)

    def _back(self, tensor: Any) -> Any:
        return tensor.contiguous() if tensor.dim() in self.formats else tensor
