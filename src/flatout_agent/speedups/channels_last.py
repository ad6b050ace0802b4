"""Channels-last: tensors in that memory format, and calls of models that may reject it.

The boost `channels-last` and the library's `layout` share this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups import forward_state, nests
from flatout_agent.speedups.stand_in import is_dense

if TYPE_CHECKING:
    import torch

REFUSED = "the model uses .view() where only the usual format will do"


def formats() -> dict[int, torch.memory_format]:
    """The format by number of dimensions: images [N, C, H, W], volumes [N, C, D, H, W]."""
    import torch

    return {4: torch.channels_last, 5: torch.channels_last_3d}


def convolutions(
    model: torch.nn.Module, dimensions: Iterable[int] = (4, 5)
) -> list[torch.nn.modules.conv._ConvNd]:
    """The model's convolutions of images (4) and volumes (5), including transposed ones."""
    import torch

    nn = torch.nn
    kinds = {4: (nn.Conv2d, nn.ConvTranspose2d), 5: (nn.Conv3d, nn.ConvTranspose3d)}
    layers = tuple(kind for dimension in dimensions for kind in kinds[dimension])
    return [module for module in model.modules() if isinstance(module, layers)]


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor of images is in that format but not also in the usual one."""
    import torch

    return (
        tensor.dim() == 4
        and is_dense(tensor)
        and not tensor.is_contiguous()
        and bool(tensor.is_contiguous(memory_format=torch.channels_last))
    )


class ChannelsLast:
    """Converts tensors of given numbers of dimensions until the model rejects the format."""

    def __init__(self, model: torch.nn.Module, dimensions: Iterable[int]) -> None:
        self.model = model
        self.formats = {dimension: formats()[dimension] for dimension in dimensions}
        self.converted = 0
        """The number of tensors that had another format."""
        self.refused = ""
        """Why the model cannot take the format."""

    def to(self, nest: Any) -> Any:
        """A nest with these tensors in channels-last; tensors already in it are not copied."""
        return nests.change(nest, self._to)

    def back(self, nest: Any) -> Any:
        """A nest with these tensors in the usual format."""
        return nests.change(nest, self._back)

    def call(self, converted: Callable[[], Any], usual: Callable[[], Any], keep: bool) -> Any:
        """The result of `converted`, or that of `usual` if the model rejects the format.

        keep: `usual` starts with buffers, random states and notes as they were.
        """
        restore = forward_state.keep([self.model]) if keep else None
        try:
            return converted()
        except RuntimeError as error:
            if "view size is not compatible" not in str(error):
                raise
            self.refused = REFUSED
        if restore is not None:
            restore()
        return usual()

    def _to(self, tensor: torch.Tensor) -> Any:
        import torch

        memory_format = self.formats.get(tensor.dim())
        if memory_format is None or not tensor.is_floating_point() or not is_dense(tensor):
            return tensor
        # Tensor.to, not contiguous(): a single channel counts as contiguous in both formats, and
        # kernels go by the strides.
        changed = tensor.to(memory_format=memory_format)
        self.converted += changed is not tensor
        if changed is not tensor and changed.requires_grad and tensor.is_contiguous():
            # The program may take this gradient (a gradient penalty, an attack) and view() it.
            changed.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
        return changed

    def _back(self, tensor: torch.Tensor) -> Any:
        return tensor.contiguous() if tensor.dim() in self.formats else tensor
