"""Depthwise convolutions in float32 where bfloat16 autocast would slow them down on a CPU.

oneDNN has no fast backward pass for some of them in bfloat16. With one or two channels in a group
and a stride they take 2 to 20 times as long as in float32; in channels-last some without a stride
take twice as long. The casts cost little beside that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.stand_in import StandIns, in_float32, rounded_in_training

if TYPE_CHECKING:
    import torch

MOST_CHANNELS = 2
"""Convolutions with more channels in each group are fast in bfloat16."""
FAST_KERNEL = 3
"""In channels-last, kernels of at most this size are fast in bfloat16."""


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
            if groups == 1 or not self._stand_ins.holders:
                return original(*args, **kwargs)
            try:
                slow = _is_slow(*args, **kwargs)
            except Exception:  # torch says what is wrong with the call
                slow = False
            if not slow:
                return original(*args, **kwargs)
            return in_float32(original, args, kwargs).to(torch.bfloat16)

        return convolution


def _is_slow(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> bool:
    """Whether autocast would compute this convolution in bfloat16, slowly."""
    import torch

    rounded = torch.float32, torch.bfloat16, torch.float16
    if (
        not rounded_in_training(input, weight)
        or input.dtype not in rounded
        or weight.dtype not in rounded
        or weight.shape[1] > MOST_CHANNELS
    ):
        return False
    if _largest(stride) > 1:
        return True
    plain = weight.shape[:2] == (groups, 1) and _largest(dilation) == 1
    fast = plain and max(weight.shape[2:]) <= FAST_KERNEL
    channels_last = input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last)
    return channels_last and not fast


def _largest(numbers: int | tuple[int, ...]) -> int:
    return numbers if isinstance(numbers, int) else max(numbers)


@functools.cache
def depthwise() -> DepthwiseConvolutions:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return DepthwiseConvolutions()
