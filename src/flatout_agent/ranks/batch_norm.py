"""Batch normalisation over the rows of all ranks.

torch's SyncBatchNorm takes no tensors on a CPU and needs `init_process_group`; this computes the
same through the ranks' own group. `torch.nn.functional.batch_norm` is what every layer calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.ranks.group import RankGroup
from flatout_agent.replacing import Undo, replaced


def shared(group: RankGroup, active: Callable[[], bool]) -> Undo:
    """Normalise over all ranks' rows while `active()`; returns the way back."""
    original = torch.nn.functional.batch_norm

    def batch_norm(
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        if not (training and active()):
            return original(input, running_mean, running_var, weight, bias, training, momentum, eps)
        mean, variance, count = _statistics(input, group)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                unbiased = variance * (count / max(count - 1.0, 1.0))
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        normalised: torch.Tensor = _Normalised.apply(
            input, weight, bias, mean, variance, count, eps, group
        )  # type: ignore[no-untyped-call]
        return normalised

    return replaced(torch.nn.functional, "batch_norm", batch_norm)


def _statistics(batch: torch.Tensor, group: RankGroup) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and biased variance of each channel over all ranks' rows, and the values of one."""
    with torch.no_grad():
        dims = [dim for dim in range(batch.ndim) if dim != 1]
        own = batch.detach().to(torch.promote_types(batch.dtype, torch.float32))
        variance, mean = torch.var_mean(own, dims, correction=0)
        channels = mean.numel()
        count = batch.numel() // channels
        moments = mean.new_empty(group.size, 2 * channels + 1)
        sent = torch.cat([mean, variance, mean.new_tensor([float(count)])])
        moments = group.joined(sent[None], 0, [1] * group.size)
        means, variances = moments[:, :channels], moments[:, channels:-1]
        shares = moments[:, -1:] / moments[:, -1].sum()
        whole = (shares * means).sum(0)
        # Chan's formula: of squares of differences only, so that nothing is cancelled.
        spread = (shares * (variances + (means - whole).square())).sum(0)
        return whole, spread, float(moments[:, -1].sum())


class _Normalised(torch.autograd.Function):
    """`(x - mean) / sqrt(variance + eps) * weight + bias`; mean and variance are functions of x."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        count: float,
        eps: float,
        group: RankGroup,
    ) -> torch.Tensor:
        ctx.save_for_backward(batch, weight, mean, variance)
        ctx.count, ctx.eps, ctx.group = count, eps, group
        return torch.batch_norm(
            batch, weight, bias, mean, variance, False, 0.0, eps, torch.backends.cudnn.enabled
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        batch, weight, mean, variance = ctx.saved_tensors
        wide = mean.dtype
        shape = [1, -1] + [1] * (batch.ndim - 2)
        dims = [dim for dim in range(batch.ndim) if dim != 1]
        inverse = torch.rsqrt(variance + ctx.eps)
        wide_gradient = gradient.to(wide)
        centred = batch.to(wide) - mean.view(shape)
        of_bias = wide_gradient.sum(dims)
        of_weight = (wide_gradient * centred).sum(dims) * inverse
        whole = ctx.group.sum_(torch.cat([of_bias, of_weight])) / ctx.count
        whole_bias, whole_weight = whole.chunk(2)
        scale = inverse if weight is None else inverse * weight.to(wide)
        slope = (whole_weight * inverse).view(shape)
        of_batch = (wide_gradient - whole_bias.view(shape) - centred * slope) * scale.view(shape)
        dtype = None if weight is None else weight.dtype
        return (
            of_batch.to(batch.dtype),
            of_weight.to(dtype) if ctx.needs_input_grad[1] else None,
            of_bias.to(dtype or wide) if ctx.needs_input_grad[2] else None,
            *[None] * 5,
        )
