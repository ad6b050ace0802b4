"""Outputs computed without a graph that can nevertheless be differentiated.

`attach` gives tensors that came out of a call under `no_grad` the look that they would have had
with gradients on. Should the program ever run backward through them, the call is made once more,
with gradients, and the right gradient comes out: slower, but correct.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups import nests

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda", "xpu")


class Call:
    """A call that ran without gradients, with all that is needed to run it again."""

    def __init__(
        self,
        call: Callable[[], Any],
        parameters: Sequence[torch.Tensor],
        differentiated: Callable[[], None],
    ) -> None:
        import torch

        self.call, self.parameters = call, parameters
        self.differentiated = differentiated
        self.versions = [parameter._version for parameter in parameters]
        self.autocast = [
            (device, torch.get_autocast_dtype(device))
            for device in DEVICES
            if torch.is_autocast_enabled(device)
        ]
        self.chosen: list[int] = []
        """Positions of the outputs that are differentiable, among the tensors of the nest."""

    def attach(self, outputs: Any, mask: tuple[bool, ...]) -> Any:
        """`outputs`, where each tensor whose entry in `mask` is true can be differentiated."""
        tensors = list(nests.tensors(outputs))
        if len(mask) != len(tensors):  # other outputs than ever watched: none may lose its gradient
            mask = tuple(True for _ in tensors)
        self.chosen = [
            position
            for position, (tensor, differentiable) in enumerate(zip(tensors, mask, strict=True))
            if differentiable and tensor.dtype.is_floating_point and not tensor.requires_grad
        ]
        if not self.chosen or not self.parameters:
            return outputs
        values = [tensors[position].detach() for position in self.chosen]
        attached = _function().apply(self, values, *self.parameters)
        replacements = {id(tensors[at]): new for at, new in zip(self.chosen, attached, strict=True)}
        return nests.change(outputs, lambda tensor: replacements.get(id(tensor), tensor))

    def gradients(self, output_gradients: tuple[Any, ...], create_graph: bool) -> tuple[Any, ...]:
        """Gradients of the parameters for those of the outputs: the call runs again."""
        import torch

        self.differentiated()
        if [parameter._version for parameter in self.parameters] != self.versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation"
            )
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            tensors = list(nests.tensors(self.call()))
        pairs = [
            (tensors[position], gradient)
            for position, gradient in zip(self.chosen, output_gradients, strict=True)
            if gradient is not None and tensors[position].requires_grad
        ]
        if not pairs:
            return tuple(None for _ in self.parameters)
        gradients: tuple[Any, ...] = torch.autograd.grad(
            [output for output, _ in pairs],
            self.parameters,
            [gradient for _, gradient in pairs],
            allow_unused=True,
            create_graph=create_graph,
        )
        return gradients


@functools.cache
def _function() -> Any:
    """The autograd function, created on first use because its base class is torch's."""
    import torch

    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, call: Call, values: list[torch.Tensor], *parameters: torch.Tensor
        ) -> Any:
            ctx.call = call
            ctx.set_materialize_grads(False)
            return tuple(values)

        @staticmethod
        def backward(ctx: Any, *output_gradients: Any) -> Any:
            return (None, None, *ctx.call.gradients(output_gradients, torch.is_grad_enabled()))

    return Recompute
