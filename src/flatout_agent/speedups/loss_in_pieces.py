"""Cross entropy and its gradient in one pass over the logits, some rows at a time.

The gradient of the logits is made together with the loss and kept until the backward pass, where it
is multiplied by the gradient of the loss. It is a second output of the same node of the graph, so
the graph knows how it depends on the logits. Gradients of gradients are right to any order, and the
program may write into its logits after the loss, as with torch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PIECE = 1 << 18
"""Elements per thread and piece: logits and gradient together stay in a core's cache."""
MOST_COUNTED = 0.75
"""If more of the rows count, none is left out: rows that are left out cost a copy of the others."""
FAINTEST = 1e-30
"""The smallest share of the target that float32 holds at full precision."""


@dataclass(frozen=True)
class Terms:
    """The targets of a loss over rows of logits, and the weight of each row."""

    index: torch.Tensor
    """Column of the target per row, of shape (rows, 1); 0 if the row is ignored."""
    counted: torch.Tensor
    amount: torch.Tensor
    """Weight of each row; 0 if it is ignored."""
    total: torch.Tensor | None
    """Divisor of the sum, or None if it is not divided."""
    smoothing: float

    def scale(self) -> torch.Tensor:
        """Derivative of the loss with respect to each row's loss."""
        import torch

        if self.total is None:
            return self.amount
        # If no row counts, the loss is NaN, but the gradient is 0.
        return torch.where(self.counted, self.amount / self.total, 0.0)


@dataclass(frozen=True)
class Made:
    """The results of one pass over the logits."""

    loss: torch.Tensor
    gradient: torch.Tensor
    scale: torch.Tensor
    terms: Terms


def terms(
    logits: torch.Tensor, target: Any, weight: Any, mean: bool, ignored: int, smoothing: float
) -> Terms | None:
    """The terms of the loss, or None if a target is out of range."""
    import torch

    counted = (target != ignored).unsqueeze(1)
    index = torch.where(counted, target.unsqueeze(1), 0)
    if bool(((index < 0) | (index >= logits.shape[1])).any()):
        return None
    amount = counted.to(_wide(logits.dtype))
    if weight is not None:
        amount = torch.where(counted, weight[index], 0.0)
    return Terms(index, counted, amount, amount.sum() if mean else None, smoothing)


def loss_and_gradient(logits: torch.Tensor, terms: Terms) -> Made:
    """Loss and gradient of logits of shape (rows, columns), in float32 at least within a piece."""
    import torch

    rows, columns = logits.shape
    wide = _wide(logits.dtype)
    used = terms.counted.squeeze(1).nonzero().squeeze(1)
    if 0 < len(used) <= MOST_COUNTED * rows:
        index, counted, amount = (
            item.index_select(0, used) for item in (terms.index, terms.counted, terms.amount)
        )
        some = loss_and_gradient(
            logits.index_select(0, used),
            Terms(index, counted, amount, terms.total, terms.smoothing),
        )
        gradient = torch.zeros(rows, columns, dtype=logits.dtype, device=logits.device)
        gradient.index_copy_(0, used, some.gradient)
        return Made(some.loss, gradient, terms.scale(), terms)
    gradient = torch.empty(rows, columns, dtype=logits.dtype, device=logits.device)
    scale = terms.scale()
    shares = torch.empty(rows, 1, dtype=wide, device=logits.device)
    above = torch.empty_like(shares) if terms.smoothing else shares
    step = torch.get_num_threads() * max(1, PIECE // columns)
    spare = None
    if logits.dtype is not wide:
        shape = (min(step, rows), columns)
        spare = [torch.empty(shape, dtype=wide, device=logits.device) for _ in range(2)]
    whole = (logits, gradient, terms.index, scale, shares, above)
    for begin in range(0, rows, step):
        pieces = [item[begin : begin + step] for item in whole] if rows > step else whole
        _piece(pieces, spare, terms.smoothing)
    losses = _losses(logits, shares, above, terms)
    loss = losses.mul_(terms.amount).sum()
    return Made(loss if terms.total is None else loss / terms.total, gradient, scale, terms)


def _piece(
    pieces: Sequence[torch.Tensor], spare: list[torch.Tensor] | None, smoothing: float
) -> None:
    """The gradient of some rows, and for each row its target's share and how far the largest one is
    above it.
    """
    import torch

    logits, gradient, index, scale, target, above = pieces
    shares = gradient
    if spare is not None:
        values, shares = (item[: len(logits)] for item in spare)
        logits = values.copy_(logits)
    if smoothing:
        torch.sum(torch.sub(logits.gather(1, index), logits, out=shares), 1, True, out=above)
    torch.ops.aten._softmax.out(logits, 1, False, out=shares)
    torch.gather(shares, 1, index, out=target)
    # Before the gradient is rounded to half precision: a share near 1 would leave nothing.
    shares.scatter_(1, index, target - (1.0 - smoothing))
    if smoothing:
        shares.sub_(smoothing / logits.shape[1])
    torch.mul(shares, scale, out=gradient)


def _losses(
    logits: torch.Tensor, shares: torch.Tensor, above: torch.Tensor, terms: Terms
) -> torch.Tensor:
    """The loss of each row, from the share of its target; 0 for rows that do not count."""
    columns, smoothing = logits.shape[1], terms.smoothing
    losses = shares.log().neg_()
    if smoothing:
        losses.add_(above, alpha=smoothing / columns)
    faint = terms.counted & ~(shares > FAINTEST)
    if bool(faint.any()):  # a share that is too small for its logarithm, or NaN
        rows = faint.squeeze(1).nonzero().squeeze(1)
        logs = logits[rows].to(shares.dtype).log_softmax(1)
        target_losses = -logs.gather(1, terms.index[rows])
        losses[rows] = (
            (1.0 - smoothing) * target_losses - smoothing * logs.mean(1, True)
            if smoothing
            else target_losses
        )
    return losses.masked_fill_(~terms.counted, 0.0)


def _wide(dtype: torch.dtype) -> Any:
    import torch

    return torch.float64 if dtype is torch.float64 else torch.float32


@functools.cache
def node() -> Any:
    """The autograd function: `apply(logits, made)` returns the loss and the gradient."""
    import torch

    base: Any = torch.autograd.Function

    class LossInPieces(base):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, logits: torch.Tensor, result: Made) -> Any:
            ctx.set_materialize_grads(False)
            ctx.smoothing = result.terms.smoothing
            ctx.logits = None
            if result.gradient.dtype is not result.scale.dtype:  # half precision: see _shares
                ctx.logits = logits.detach()
                ctx.version = logits._version
            ctx.save_for_backward(result.gradient, result.terms.index, result.scale)
            return result.loss, result.gradient

        @staticmethod
        def backward(ctx: Any, of_loss: Any, of_gradient: Any) -> Any:
            gradient, index, scale = ctx.saved_tensors
            if of_loss is None and of_gradient is None:
                return None, None
            if of_gradient is None and not torch.is_grad_enabled():
                return _times(gradient.detach(), of_loss), None
            slope = 0.0 if of_loss is None else gradient * of_loss
            if of_gradient is not None:
                shares = _shares(ctx, gradient, index, scale)
                mean = (shares * of_gradient).sum(1, keepdim=True)
                slope = slope + (scale * shares * (of_gradient - mean)).to(gradient.dtype)
            return slope, None

    return LossInPieces


def _times(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """The gradient itself is returned if it is not needed again; usually the factor is 1."""
    import torch

    if torch.compiler.is_compiling() or type(factor) is not torch.Tensor or _keeps_graph():
        return gradient * factor
    try:
        is_one = factor.device.type == "cpu" and factor.item() == 1.0
    except RuntimeError:  # many factors at once: this is under vmap
        return gradient * factor
    return gradient if is_one else gradient.mul_(factor)


def _keeps_graph() -> bool:
    """Whether the backward pass under way keeps the graph for another one."""
    import torch

    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return keeps_graph is None or bool(keeps_graph())


def _shares(
    ctx: Any, gradient: torch.Tensor, index: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """The softmax of the logits, and how it depends on them, from the gradient."""
    import torch

    # A row that does not count has no gradient, so any scale will do.
    shares = gradient.to(scale.dtype) / torch.where(scale == 0, 1.0, scale)
    target = torch.full_like(shares, ctx.smoothing / shares.shape[1])
    shares = shares + target.scatter_add(1, index, torch.full_like(scale, 1.0 - ctx.smoothing))
    if ctx.logits is not None and ctx.logits._version == ctx.version:
        # A gradient in half precision holds small shares badly, and the logits are unchanged.
        exact = ctx.logits.to(scale.dtype).softmax(1)
        shares = shares + (exact - shares).detach()
    return shares
