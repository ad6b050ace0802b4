"""Batch normalisation over the rows of all ranks.

torch's SyncBatchNorm takes no tensors on a CPU and needs `init_process_group`; this computes the
same through the ranks' own group. Every layer calls `torch.nn.functional.batch_norm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.attach.replacing import Undo, replaced
from flatout_agent.ranks.group import RankGroup


def shared(group: RankGroup, active: Callable[[], bool]) -> Undo:
    """Normalise over all ranks' rows while `active()`; returns the undo function."""
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
                # Through .data, as torch's own kernel: graphs of earlier calls hold the buffers.
                running_mean.data.lerp_(mean.to(running_mean.dtype), momentum)
                unbiased = variance * (count / (count - 1.0).clamp(min=1.0))
                running_var.data.lerp_(unbiased.to(running_var.dtype), momentum)
        normalised: torch.Tensor = _Normalised.apply(
            input, weight, bias, mean, variance, count, eps, group
        )  # type: ignore[no-untyped-call]
        return normalised

    return replaced(torch.nn.functional, "batch_norm", batch_norm)


def _statistics(batch: torch.Tensor, group: RankGroup) -> list[torch.Tensor]:
    """Mean and biased variance of each channel over all ranks' rows, and the number of values per
    channel. That is a tensor too: to read it would wait for the device in each layer.
    """
    with torch.no_grad():
        mean, variance = _of_own_rows(batch.detach())
        channels = mean.numel()
        own = mean.new_full((1,), batch.numel() // channels)
        sent = torch.cat([mean, variance, own])
        moments = group.joined(sent[None], 0, [1] * group.size)
        means, variances = moments[:, :channels], moments[:, channels:-1]
        count = moments[:, -1].sum()
        shares = moments[:, -1:] / count
        whole = (shares * means).sum(0)
        # Chan's formula uses only squares of differences, so nothing cancels.
        spread = (shares * (variances + (means - whole).square())).sum(0)
        return [whole, spread, count]


def _of_own_rows(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and biased variance of each channel, at least in float32."""
    if batch.device.type == "cpu" and batch.dtype in (torch.float32, torch.float64):
        mean, variance = torch.batch_norm_update_stats(batch, None, None, 0.0)
        return mean, variance
    dims = [dim for dim in range(batch.ndim) if dim != 1]
    wide = batch.to(torch.promote_types(batch.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, dims, correction=0)
    return mean, variance


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
        count: torch.Tensor,
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
        inverse = torch.rsqrt(variance + ctx.eps)
        gradient = gradient.contiguous() if batch.is_contiguous() else gradient
        # The sums over a channel, about the mean of all ranks.
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, batch, torch.ones_like(mean), None, None, mean, inverse, True, ctx.eps,
            [False, True, True],
        )  # fmt: skip
        whole = ctx.group.sum_(torch.cat([of_bias, of_weight])) / ctx.count
        mean_gradient, slope = whole.chunk(2)
        scale = inverse if weight is None else inverse * weight.to(mean.dtype)
        # scale * (gradient - mean_gradient - (batch - mean) * inverse * slope), in two passes.
        factor = -scale * inverse * slope
        offset = -scale * mean_gradient - factor * mean
        of_batch = torch.batch_norm(
            batch, factor, offset, torch.zeros_like(mean), torch.ones_like(mean),
            False, 0.0, 0.0, False,
        )  # fmt: skip
        shape = [1, -1] + [1] * (batch.ndim - 2)
        of_batch.addcmul_(gradient, scale.to(batch.dtype).view(shape))
        return (
            of_batch,
            of_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            of_bias.to(weight.dtype if weight is not None else None)
            if ctx.needs_input_grad[2]
            else None,
            *[None] * 5,
        )
