"""Cross entropy of a linear layer's output, chunk by chunk: the logits are never stored as a whole.

For each chunk of rows the forward pass computes its logits, their losses and the gradient with
respect to the chunk's logits, and from it at once the gradients of the layer's input and weight. So
apart from those gradients only one chunk of logits exists at a time. The backward pass scales them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Slope = Callable[[Tensor, Tensor, float, torch.dtype], tuple[Tensor, Tensor]]
"""(logits of a chunk, targets (rows, 1), label smoothing, dtype to compute in) -> loss of each row
(rows, 1) and its gradient with respect to the logits, in their dtype."""

CHUNK_BYTES = 1 << 30
"""Largest chunk, in bytes of its float32 logits: 4096 to 8192 rows of a usual vocabulary. With
fewer rows, accumulating the float32 gradient of the weight (8 bytes read and written per weight and
chunk) would cost more than a tenth of the chunk's matrix products; more rows only take memory."""
CHUNKS = 8
"""Fewest chunks: a chunk's logits are then small compared with storing all of them."""
FEWEST_ROWS = 128
"""Fewest rows of a chunk: smaller matrix products underuse a device."""


@dataclass(frozen=True)
class ChunkedLossTerms:
    """The parameters of the loss, apart from its tensors."""

    product: torch.dtype
    """Dtype of the logits, as the linear layer would have computed them."""
    wide: torch.dtype
    """Dtype of everything computed from them: float32, or float64 if the loss is."""
    result: torch.dtype
    """Dtype of the loss."""
    mean: bool
    """Whether the reduction is by mean; otherwise by sum."""
    ignore_index: int
    label_smoothing: float
    slope: Slope


def cross_entropy(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    terms: ChunkedLossTerms,
) -> Tensor:
    """The loss of logits `rows @ weight.T + bias`, 0-d; nothing waits for the device.

    rows: (N, width). weight: (classes, width). bias: (classes,). target: (N,), int64.
    class_weight: (classes,), without gradient, and only without label smoothing.
    """
    apply: Callable[..., Tensor] = _ChunkedLoss.apply
    return apply(rows, weight, bias, target, class_weight, terms)


def chunk_rows(rows: int, columns: int) -> int:
    """Rows per chunk; chunks have equal sizes where a number of chunks nearby divides the rows."""
    most = max(FEWEST_ROWS, CHUNK_BYTES // (4 * columns))
    count = max(-(-rows // most), min(CHUNKS, rows // FEWEST_ROWS), 1)
    even = (chunks for chunks in range(count, 2 * count) if rows % chunks == 0)
    return -(-rows // next(even, count)) if rows else 1


def slope(
    logits: Tensor, index: Tensor, smoothing: float, wide: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Loss of each row and its gradient, which overwrites the logits."""
    logs = torch.log_softmax(logits, 1, dtype=wide)
    own = logs.gather(1, index)
    losses = -own
    if smoothing:
        losses = (smoothing - 1.0) * own - smoothing * logs.mean(1, keepdim=True)
        gradient = logs.exp_().sub_(smoothing / logits.shape[1])
        gradient.scatter_add_(1, index, torch.full_like(own, smoothing - 1.0))
        return losses, logits.copy_(gradient)
    torch.exp(logs, out=logits)  # rounded once, like the gradient that cross entropy casts back
    return losses, logits.scatter_(1, index, own.expm1().to(logits.dtype))


def slope_for_compiler(
    logits: Tensor, index: Tensor, smoothing: float, wide: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`slope` without writing to the logits, for one kernel that reads and writes them once."""
    logs = torch.log_softmax(logits.to(wide), 1)
    own = logs.gather(1, index)
    losses = (smoothing - 1.0) * own - smoothing * logs.mean(1, keepdim=True)
    shares = logs.exp() - smoothing / logits.shape[1]
    is_target = torch.arange(logits.shape[1], device=logits.device) == index
    return losses, torch.where(is_target, shares - (1.0 - smoothing), shares).to(logits.dtype)


class _Gradients:
    """Gradients of rows, weight and bias, summed over chunks; only those that are needed.

    They lack the factor of the backward pass, so that float16 does not overflow. Those of weight
    and bias are at least float32: a 16-bit sum of rounded parts would lose up to three more bits
    with each doubling of the number of chunks.
    """

    def __init__(self, rows: Tensor, weight: Tensor, needed: Sequence[bool], wide: Any) -> None:
        self.rows = torch.empty_like(rows) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        self.bias = weight.new_zeros(len(weight), dtype=wide) if needed[2] else None

    def add(self, begin: int, slopes: Tensor, rows: Tensor, weight: Tensor, amount: Tensor) -> None:
        """Add the contribution of a chunk's logits; `amount` is the weight of each row."""
        if self.rows is not None:
            part = self.rows[begin : begin + len(rows)]
            part.copy_(torch.mm(slopes, weight) * amount)
        if self.weight is not None:
            _add_product(self.weight, slopes.t(), (rows * amount).to(rows.dtype))
        if self.bias is not None:
            self.bias.add_(torch.mv(slopes.t(), amount.squeeze(1).to(slopes.dtype)))


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(torch.mm(left, right))


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        class_weight: Tensor | None,
        terms: ChunkedLossTerms,
    ) -> Tensor:
        counted = (target != terms.ignore_index).unsqueeze(1)
        index = torch.where(counted, target.unsqueeze(1), 0)
        amount = counted.to(terms.wide)
        if class_weight is not None:
            amount = torch.where(counted, class_weight.to(terms.wide)[index], 0.0)
        with _without_autocast(rows.device):
            loss, gradients = _passed(ctx, rows, weight, bias, (index, amount, counted), terms)
        total = amount.sum() if terms.mean else None
        ctx.terms = terms
        ctx.save_for_backward(
            rows,
            weight,
            bias,
            target,
            class_weight,
            total,
            gradients.rows,
            gradients.weight,
            gradients.bias,
        )
        return (loss if total is None else loss / total).to(terms.result)

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor) -> Any:
        *inputs, total, of_rows, of_weight, of_bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward
            return (*_as_written(ctx, inputs, of_loss), None, None, None)
        factor = of_loss.to(ctx.terms.wide)
        if total is not None:  # with a total weight of 0 the loss is NaN, but the gradient is 0
            factor = torch.where(total == 0, 0.0, factor / total)
        pairs = zip((of_rows, of_weight, of_bias), inputs[:3], strict=True)
        scaled = [
            None if gradient is None else _scaled(gradient, factor, source)
            for gradient, source in pairs
        ]
        return (*scaled, None, None, None)


def _passed(
    ctx: Any,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    wanted: tuple[Tensor, Tensor, Tensor],
    terms: ChunkedLossTerms,
) -> tuple[Tensor, _Gradients]:
    """The sum of the losses of all rows, and the gradients of that sum."""
    kind = terms.product
    rows, weight = rows.to(kind), weight.to(kind)
    bias = None if bias is None else bias.to(kind)
    gradients = _Gradients(
        rows, weight, ctx.needs_input_grad, torch.promote_types(kind, torch.float32)
    )
    loss = torch.zeros((), dtype=terms.wide, device=rows.device)
    step = chunk_rows(len(rows), len(weight))
    for begin in range(0, len(rows), step):
        part = rows[begin : begin + step]
        index, amount, counted = (tensor[begin : begin + step] for tensor in wanted)
        logits = functional.linear(part, weight, bias)
        losses, slopes = terms.slope(logits, index, terms.label_smoothing, terms.wide)
        loss += torch.where(counted, losses * amount, 0.0).sum()
        gradients.add(begin, slopes, part, weight, amount)
    return loss, gradients


def _scaled(gradient: Tensor, factor: Tensor, of: Tensor) -> Tensor:
    """The scaled gradient, with the factor in its own dtype: rounding it would bias all values."""
    scaled = torch.empty_like(gradient, dtype=of.dtype)
    return torch.mul(gradient, factor.view([1] * gradient.dim()), out=scaled)


def _as_written(ctx: Any, inputs: Sequence[Any], of_loss: Tensor) -> list[Tensor | None]:
    """The gradients as differentiable functions of all inputs, by way of stored logits."""
    terms: ChunkedLossTerms = ctx.terms
    target, class_weight = inputs[3:]
    kind = terms.product
    with torch.enable_grad(), _without_autocast(target.device):
        rows, weight, bias = own_inputs = aliases(inputs[:3])
        bias = None if bias is None else bias.to(kind)
        logits = functional.linear(rows.to(kind), weight.to(kind), bias).to(terms.wide)
        loss = functional.cross_entropy(
            logits,
            target,
            None if class_weight is None else class_weight.to(terms.wide),
            ignore_index=terms.ignore_index,
            reduction="mean" if terms.mean else "sum",
            label_smoothing=terms.label_smoothing,
        )
        needed = ctx.needs_input_grad[:3]
        sources = [tensor for tensor, need in zip(own_inputs, needed, strict=True) if need]
        gradients = iter(
            torch.autograd.grad(loss, sources, of_loss.to(loss.dtype), create_graph=True)
        )
        return [next(gradients) if need else None for need in needed]


def aliases(tensors: Sequence[Any]) -> list[Any]:
    """Views to differentiate with respect to, which no other path in the graph leads to.

    The rows may depend on the weight itself, where an embedding shares it.
    """
    return [None if tensor is None else tensor.view_as(tensor) for tensor in tensors]


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)
