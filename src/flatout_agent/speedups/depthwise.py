"""Depthwise convolutions in float32 where bfloat16 autocast would slow them down on a CPU.

oneDNN has no fast backward pass for some of them in bfloat16. Those with a stride take 5 to 20
times as long as in float32, and those with large kernels in channels-last twice as long; the casts
cost little beside that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.stand_in import StandIns, is_plain

if TYPE_CHECKING:
    import torch

FAST_KERNEL = 3
"""Kernels of at most this size are fast in bfloat16 if there is no stride."""


class DepthwiseConvolutions:
    """Replaces torch's convolutions and computes the slow ones in float32 while it is held."""

    def __init__(self) -> None:
        import torch

        functions = dict.fromkeys(("conv1d", "conv2d", "conv3d"), self._convolution)
        self._stand_ins = StandIns({torch.nn.functional: functions})
        self.hold, self.let_go = self._stand_ins.hold, self._stand_ins.let_go

    def _convolution(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        def convolution(*args: Any, **kwargs: Any) -> Any:
            groups = args[6] if len(args) > 6 else kwargs.get("groups", 1)
            if groups == 1 or not self._stand_ins.holders or not _is_slow(groups, *args, **kwargs):
                return original(*args, **kwargs)
            with torch.autocast("cpu", enabled=False):
                values = [_float32(value) for value in args]
                named = {name: _float32(value) for name, value in kwargs.items()}
                return original(*values, **named).to(torch.bfloat16)

        return convolution


def _is_slow(
    count: int,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    *_: Any,
    **__: Any,
) -> bool:
    """Whether autocast would compute this convolution of `count` groups in bfloat16, slowly."""
    import torch

    if (
        not torch.is_autocast_enabled("cpu")
        or torch.get_autocast_dtype("cpu") is not torch.bfloat16
        or not torch.is_grad_enabled()
        or not is_plain(input, weight)
        or not (input.requires_grad or weight.requires_grad)
        or input.device.type != "cpu"
        or input.dtype.itemsize > 4
        or weight.shape[1] != 1
        or weight.shape[0] != count
    ):
        return False
    strides = (stride,) if isinstance(stride, int) else stride
    if max(strides) > 1:
        return True
    channels_last = input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last)
    return channels_last and max(weight.shape[2:]) > FAST_KERNEL


def _float32(value: Any) -> Any:
    import torch

    return value.float() if isinstance(value, torch.Tensor) else value


@functools.cache
def depthwise() -> DepthwiseConvolutions:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return DepthwiseConvolutions()
