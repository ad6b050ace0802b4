"""Cross entropy of a linear layer's output, some rows at a time: the logits are never stored whole.

The forward pass makes, for each chunk of rows, its logits, their losses and the gradient of the
chunk's logits, and takes that at once to the gradients of the layer's input and weight. So beside
those gradients there is only ever one chunk of logits. The backward pass scales them.
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
(rows, 1) and its gradient by the logits, in their dtype."""

CHUNK_BYTES = 1 << 30
"""Logits of one chunk in float32 at most: 4096 to 8192 rows of a usual vocabulary. With fewer rows,
adding to the float32 gradient of the weight (8 bytes read and written per weight and chunk) would
cost more than a tenth of the chunk's matrix products; more rows would only take memory."""
CHUNKS = 8
"""Chunks at least: a chunk's logits are then small beside what storing all of them takes."""
FEWEST_ROWS = 128
"""Of a chunk: below that matrix products leave a device idle."""


@dataclass(frozen=True)
class Terms:
    """How the loss is computed, beside its tensors."""

    product: torch.dtype
    """Of the logits, as the linear layer would have made them."""
    wide: torch.dtype
    """Of all that is computed from them: float32, or float64 where the loss is."""
    result: torch.dtype
    """Of the loss."""
    mean: bool
    """Else the sum."""
    ignore_index: int
    label_smoothing: float
    slope: Slope


def cross_entropy(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    terms: Terms,
) -> Tensor:
    """The loss of logits `rows @ weight.T + bias`, 0-d; nothing waits for the device.

    rows: (N, width). weight: (classes, width). bias: (classes,). target: (N,), int64.
    class_weight: (classes,), without gradient, and only without label smoothing.
    """
    apply: Callable[..., Tensor] = _ChunkedLoss.apply
    return apply(rows, weight, bias, target, class_weight, terms)


def chunk_rows(rows: int, columns: int) -> int:
    """Rows per chunk; chunks are of one size where a number of chunks nearby divides the rows."""
    most = max(FEWEST_ROWS, CHUNK_BYTES // (4 * columns))
    count = max(-(-rows // most), min(CHUNKS, rows // FEWEST_ROWS), 1)
    even = (chunks for chunks in range(count, 2 * count) if rows % chunks == 0)
    return -(-rows // next(even, count)) if rows else 1


def slope(
    logits: Tensor, index: Tensor, smoothing: float, wide: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Loss of each row and its gradient, which takes the place of the logits."""
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
    """The same without writing to the logits, for one kernel that reads and writes them once."""
    logs = torch.log_softmax(logits.to(wide), 1)
    own = logs.gather(1, index)
    losses = (smoothing - 1.0) * own - smoothing * logs.mean(1, keepdim=True)
    shares = logs.exp() - smoothing / logits.shape[1]
    here = torch.arange(logits.shape[1], device=logits.device) == index
    return losses, torch.where(here, shares - (1.0 - smoothing), shares).to(logits.dtype)


class _Gradients:
    """Of rows, weight and bias, summed up over chunks; of those that are asked for.

    They lack the factor that comes with the backward pass, so that float16 holds them. Those of
    weight and bias are float32 at least: a sum of rounded parts in 16 bits would lose up to three
    bits more with each doubling of the chunks.
    """

    def __init__(self, rows: Tensor, weight: Tensor, needed: Sequence[bool], wide: Any) -> None:
        self.rows = torch.empty_like(rows) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        self.bias = weight.new_zeros(len(weight), dtype=wide) if needed[2] else None

    def add(self, begin: int, slopes: Tensor, rows: Tensor, weight: Tensor, amount: Tensor) -> None:
        """What the gradient of a chunk's logits gives, each row as often as it counts."""
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
        terms: Terms,
    ) -> Tensor:
        counted = (target != terms.ignore_index).unsqueeze(1)
        index = torch.where(counted, target.unsqueeze(1), 0)
        amount = counted.to(terms.wide)
        if class_weight is not None:
            amount = torch.where(counted, class_weight.to(terms.wide)[index], 0.0)
        with _without_autocast(rows.device):
            loss, made = _passed(ctx, rows, weight, bias, (index, amount, counted), terms)
        total = amount.sum() if terms.mean else None
        ctx.terms = terms
        ctx.save_for_backward(
            rows, weight, bias, target, class_weight, total, made.rows, made.weight, made.bias
        )
        return (loss if total is None else loss / total).to(terms.result)

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor) -> Any:
        *inputs, total, of_rows, of_weight, of_bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # its own gradient is asked for
            return (*_as_written(ctx, inputs, of_loss), None, None, None)
        factor = of_loss.to(ctx.terms.wide)
        if total is not None:  # where nothing counts the loss is NaN, and yet the gradient is 0
            factor = torch.where(total == 0, 0.0, factor / total)
        pairs = zip((of_rows, of_weight, of_bias), inputs[:3], strict=True)
        scaled = [None if item is None else _scaled(item, factor, of) for item, of in pairs]
        return (*scaled, None, None, None)


def _passed(
    ctx: Any,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    wanted: tuple[Tensor, Tensor, Tensor],
    terms: Terms,
) -> tuple[Tensor, _Gradients]:
    """The sum of the losses of all rows, and the gradients of that sum."""
    kind = terms.product
    rows, weight = rows.to(kind), weight.to(kind)
    bias = None if bias is None else bias.to(kind)
    made = _Gradients(rows, weight, ctx.needs_input_grad, torch.promote_types(kind, torch.float32))
    loss = torch.zeros((), dtype=terms.wide, device=rows.device)
    step = chunk_rows(len(rows), len(weight))
    for begin in range(0, len(rows), step):
        part = rows[begin : begin + step]
        index, amount, counted = (item[begin : begin + step] for item in wanted)
        logits = functional.linear(part, weight, bias)
        losses, slopes = terms.slope(logits, index, terms.label_smoothing, terms.wide)
        loss += torch.where(counted, losses * amount, 0.0).sum()
        made.add(begin, slopes, part, weight, amount)
    return loss, made


def _scaled(gradient: Tensor, factor: Tensor, of: Tensor) -> Tensor:
    """With the factor in its own dtype: a rounded one would be wrong for all alike."""
    scaled = torch.empty_like(gradient, dtype=of.dtype)
    return torch.mul(gradient, factor.view([1] * gradient.dim()), out=scaled)


def _as_written(ctx: Any, inputs: Sequence[Any], of_loss: Tensor) -> list[Tensor | None]:
    """The gradients as functions of everything, by way of stored logits."""
    terms: Terms = ctx.terms
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
        asked = [item for item, need in zip(own_inputs, needed, strict=True) if need]
        gradients = iter(
            torch.autograd.grad(loss, asked, of_loss.to(loss.dtype), create_graph=True)
        )
        return [next(gradients) if need else None for need in needed]


def aliases(tensors: Sequence[Any]) -> list[Any]:
    """Tensors to differentiate by that nothing else in the graph leads to.

    The rows may come from the weight itself, where an embedding shares it.
    """
    return [None if item is None else item.view_as(item) for item in tensors]


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)
