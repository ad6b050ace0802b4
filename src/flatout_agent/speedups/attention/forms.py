"""What a chain of tensor operations computes, where that is attention, and its fused form.

A form is the scores q k^T of all queries and keys, times a number, with what is masked, and the
softmax of that. The fused kernel computes the product of the softmax with the values without ever
writing the scores to memory.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.attention.second_gradients import make_differentiable_twice

if TYPE_CHECKING:
    import torch

LOW = -1e4
"""A score that is set to this or less has no weight beside one that is not."""
MATH = 0
"""What `_fused_sdp_choice` answers where no fused kernel takes the tensors."""


@dataclass(frozen=True)
class Form:
    """softmax(scale * q k^T, masked): q is (*batch, T, D), k is (*batch, S, D)."""

    q: torch.Tensor
    k: torch.Tensor
    shape: tuple[int, ...]
    """Of the scores as the program sees them: batch dimensions may be merged in it."""
    scale: float = 1.0
    masks: tuple[tuple[Any, float | None], ...] = ()
    """In order: (where, a number that takes the score's place), or (what is added, None)."""
    weights: bool = False
    """The softmax has been applied."""
    dropout: float = 0.0

    @property
    def full(self) -> tuple[int, ...]:
        """The shape of the scores with the batch dimensions of q."""
        return (*self.q.shape[:-1], self.k.shape[-2])


# Products -------------------------------------------------------------------------------------


def scores(a: torch.Tensor, b: torch.Tensor, equation: str | None) -> Form | None:
    """The form of a product that contracts the last dimension of queries and keys."""
    if equation is not None:
        ordered = _queries_and_keys(equation, a, b)
        if ordered is None:
            return None
        a, k = ordered
    else:
        k = b.transpose(-1, -2)
    if a.dim() != k.dim() or a.shape[-1] != k.shape[-1] or 0 in a.shape or 0 in k.shape:
        return None
    batch = _common(a.shape[:-2], k.shape[:-2])
    if batch is None:
        return None
    q, k = a.expand(*batch, -1, -1), k.expand(*batch, -1, -1)
    return Form(q, k, (*q.shape[:-1], k.shape[-2]))


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...] | None:
    pairs = list(zip(first, second, strict=True))
    if any(size != other_size and 1 not in (size, other_size) for size, other_size in pairs):
        return None
    return tuple(max(pair) for pair in pairs)


def _terms(equation: str) -> tuple[str, str, str] | None:
    """The letters of both factors and of the product; None: not a plain one of two factors."""
    factors, arrow, product = equation.replace(" ", "").partition("->")
    first, comma, second = factors.partition(",")
    terms = (first, second, product)
    if not (arrow and comma) or any(len(set(term)) != len(term) for term in terms):
        return None
    return terms if set("".join(terms)) <= set(string.ascii_letters) else None


def _queries_and_keys(equation: str, a: torch.Tensor, b: torch.Tensor) -> tuple[Any, Any] | None:
    terms = _terms(equation)
    if terms is None or not 3 <= len(terms[2]) <= 4:
        return None
    (first, second, product), rows, columns = terms, terms[2][-2], terms[2][-1]
    if rows in second:
        (first, a), (second, b) = (second, b), (first, a)
    inner = "".join(sorted(set(first) - set(product)))
    if len(inner) != 1 or (len(first), len(second)) != (a.dim(), b.dim()):
        return None
    batch = product[:-2]
    if set(first) != {*batch, rows, inner} or set(second) != {*batch, columns, inner}:
        return None
    if not _agree((first, a), (second, b)):
        return None
    return _order(a, first, batch + rows + inner), _order(b, second, batch + columns + inner)


def _agree(*operands: tuple[str, Any]) -> bool:
    """Whether each letter stands for one length: einsum also broadcasts, this does not."""
    lengths: dict[str, int] = {}
    return all(
        lengths.setdefault(letter, length) == length
        for term, tensor in operands
        for letter, length in zip(term, tensor.shape, strict=True)
    )


def _order(tensor: torch.Tensor, letters: str, order: str) -> Any:
    return tensor if letters == order else tensor.permute([letters.index(c) for c in order])


def values(form: Form, v: Any, equation: str | None, swapped: bool) -> tuple[Any, Any] | None:
    """(the values as (*batch, S, D), how the result is laid out) of a product with the weights."""
    if equation is None:
        if swapped or v.dim() != len(form.shape):
            return None
        order, v = None, v
    else:
        terms = _terms(equation)
        if terms is None:
            return None
        first, second, product = terms
        weights, other = (second, first) if swapped else (first, second)
        if len(weights) != len(form.shape) or len(other) != v.dim():
            return None
        batch, rows, columns = weights[:-2], weights[-2], weights[-1]
        inner = "".join(set(other) - {*batch, columns})
        if len(inner) != 1 or set(other) != {*batch, columns, inner}:
            return None
        sizes = dict(zip(weights, form.shape, strict=True))
        if set(product) != {*batch, rows, inner} or any(
            sizes.get(c, n) != n for c, n in zip(other, v.shape, strict=True)
        ):
            return None
        v = _order(v, other, batch + columns + inner)
        order = [(batch + rows + inner).index(c) for c in product]
    if v.shape[-2] != form.shape[-1] or _common(v.shape[:-2], form.shape[:-2]) is None:
        return None
    if len(v.shape) != len(form.shape) or 0 in v.shape:
        return None
    v = v.expand(*form.shape[:-2], -1, -1)
    return v.reshape(*form.full[:-2], *v.shape[-2:]), order


# What happens to the scores in between ----------------------------------------------------------


def scaled(form: Form, factor: Any, divided: bool, full_precision: bool) -> Form | None:
    """The scores times, or divided by, a number or a tensor that is the same for all keys."""
    if form.weights or form.shape != form.full:
        return None
    if not isinstance(factor, (int, float)):
        if factor.dim() == 0 and factor.device.type == "cpu" and not factor.requires_grad:
            factor = factor.item()
        else:
            return _scaled_queries(form, factor, divided, full_precision)
    factor = float(factor)
    if not (math.isfinite(factor) and factor > 0):
        return None
    factor = 1.0 / factor if divided else factor
    masks = tuple((mask, None if low is None else low * factor) for mask, low in form.masks)
    if any(low is None or low > LOW for _, low in masks):
        return None
    return dataclasses.replace(form, scale=form.scale * factor, masks=masks)


def _scaled_queries(form: Form, factor: Any, divided: bool, full_precision: bool) -> Form | None:
    """A learned temperature, possibly one per head: it can equally be a factor of the queries."""
    shape = (1,) * (len(form.shape) - factor.dim()) + tuple(factor.shape)
    fits = len(shape) == len(form.shape) and _common(shape, form.q.shape) == form.q.shape
    if form.masks or not fits or shape[-1] != 1:
        return None
    if not factor.is_floating_point() or factor.device != form.q.device:
        return None
    if factor.dim() and full_precision and factor.dtype != form.q.dtype:
        return None
    q = form.q / factor if divided else form.q * factor
    return dataclasses.replace(form, q=q)


def masked(form: Form, mask: torch.Tensor, low: float | None) -> Form | None:
    """With the scores set to `low` where `mask` is true, or with `mask` added."""
    if form.weights or form.shape != form.full or mask.dim() > len(form.shape):
        return None
    shape = (1,) * (len(form.shape) - mask.dim()) + tuple(mask.shape)
    if _common(shape, form.shape) != form.shape or mask.device != form.q.device:
        return None
    if low is not None and not low <= LOW:
        return None
    numbers = {known for _, known in form.masks if known is not None and math.isfinite(known)}
    added = any(known is None for _, known in form.masks)
    if low is not None and math.isfinite(low):
        numbers.add(low)
    # A query all of whose keys are masked by different numbers is not what one number makes of it.
    if len(numbers) > 1 or (numbers and (added or low is None)):
        return None
    return dataclasses.replace(form, masks=(*form.masks, (mask, low)))


def viewed(form: Form, shape: tuple[int, ...]) -> Form | None:
    """The same scores with batch dimensions split or merged."""
    if shape[-2:] != form.shape[-2:] or math.prod(shape) != math.prod(form.shape):
        return None
    if not 3 <= len(shape) <= 4:
        return None
    if len(shape) == 3 or shape == form.full:
        return dataclasses.replace(form, shape=shape)
    if form.masks or form.q.dim() != 3:
        return None
    q = form.q.reshape(*shape[:-2], *form.q.shape[-2:])
    k = form.k.reshape(*shape[:-2], *form.k.shape[-2:])
    return dataclasses.replace(form, q=q, k=k, shape=shape)


# The fused call ---------------------------------------------------------------------------------


def fused(form: Form, v: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """The weights times the values, by a fused kernel; None: none takes them."""
    import torch

    parts = [_four(part.to(dtype)) for part in (form.q, form.k, v)]
    q, k, v = (part if part.stride(-1) == 1 else part.contiguous() for part in parts)
    masking = _mask(form, dtype)
    if masking is None:
        return None
    mask, causal, rows = masking
    if rows is not None:
        q = q.masked_fill(rows, 0.0)
    options = {"attn_mask": mask, "dropout_p": form.dropout, "is_causal": causal}
    options["scale"] = form.scale
    if torch._fused_sdp_choice(q, k, v, **options) == MATH:
        return None
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
    if out.requires_grad:
        make_differentiable_twice(out, form.scale, causal)
    # As a product would lie in memory: the program may take a view of it.
    out = out.contiguous().view(*form.full[:-2], *out.shape[-2:])
    return out.view(*form.shape[:-1], out.shape[-1])


def _four(tensor: torch.Tensor) -> Any:
    """Kernels want a dimension of heads. Behind the batch, so that the result is in one piece."""
    return tensor if tensor.dim() == 4 else tensor.unsqueeze(1)


def _mask(form: Form, dtype: torch.dtype) -> tuple[Any, bool, Any] | None:
    """(the mask or what is added, whether it is the causal one, queries without any key).

    None: a kernel would not do with it what is written.
    """
    dims = form.q.dim()
    masks = [(_wide(mask, dims), low) for mask, low in form.masks]
    if not masks:
        return None, False, None
    if len(masks) == 1 and _is_causal(*masks[0]):
        return None, True, None
    if any(low is None for _, low in masks):
        bias = _bias(masks, dtype)
        return None if bias is None else (bias, False, None)
    blocked = _any_of(masks)
    rows = blocked.all(-1, keepdim=True)
    waits = rows.device.type != "cpu"  # to ask whether there are any would wait for the device
    if all(low == -math.inf for _, low in masks) or not (waits or bool(rows.any())):
        return blocked.logical_not(), False, None
    # A query whose scores are all set to one number gives its keys the same weight, and passes no
    # gradient on to them: so do zeros in its place, without a mask.
    return blocked.logical_not() | (rows & ~_infinite(masks)), False, rows


def _infinite(masks: list[tuple[Any, Any]]) -> Any:
    """Where minus infinity was set and not overwritten."""
    infinite = masks[0][0] & False
    for mask, low in masks:
        infinite = infinite | mask if low == -math.inf else infinite & ~mask
    return infinite


def _bias(masks: list[tuple[Any, Any]], dtype: torch.dtype) -> Any:
    """What is added to the scores. None: some query has no key.

    The backward pass of the kernels takes up the logarithm of a row's sum, which is lost beside a
    large number: all of a row's scores must not be low.
    """
    import torch

    bias: Any = None
    for mask, low in masks:
        if low is None:
            bias = mask if bias is None else bias + mask
        else:
            zero = torch.zeros((), dtype=dtype, device=mask.device)
            bias = torch.where(mask, low, zero if bias is None else bias)
    highest = bias.detach().amax(-1, keepdim=True)
    without = (highest <= LOW) & (highest != -math.inf)
    if without.device.type != "cpu":
        bias = torch.where(without, bias - highest, bias)
    elif bool(without.any()):
        return None
    return _in_precision(bias, dtype)


def _any_of(masks: list[tuple[Any, Any]]) -> Any:
    union = masks[0][0]
    for mask, _ in masks[1:]:
        union = union | mask
    return union


def _wide(mask: torch.Tensor, dims: int) -> torch.Tensor:
    """A mask of the program's with four dimensions; `dims`: those of its scores."""
    mask = mask.reshape((1,) * (dims - mask.dim()) + tuple(mask.shape))
    return mask if dims == 4 else mask.unsqueeze(1)


def _in_precision(bias: torch.Tensor, dtype: torch.dtype) -> Any:
    import torch

    if bias.dtype == dtype:
        return bias
    if dtype is torch.float16:
        bias = bias.clamp(min=torch.finfo(dtype).min)
    return bias.to(dtype)


def _is_causal(mask: torch.Tensor, low: float | None) -> bool:
    """Whether exactly the later keys are masked; asked only where no device has to be waited for.

    Each query has a key left, so that whatever low number stands there has no weight.
    """
    import torch

    size = mask.shape[-1]
    if mask.device.type != "cpu" or mask.requires_grad or mask.numel() != size * mask.shape[-2]:
        return False
    if size < 2 or mask.shape[-2] != size:
        return False
    square = mask.reshape(size, size)
    first, last = square[0], square[-1]
    if low is None:
        square = torch.where(square <= LOW, -math.inf, square)
    if not bool(first[-1]) or bool(first[0]) or bool(last[0]):
        return False
    return bool(torch.equal(square, _later(size, square.dtype)))


@functools.lru_cache(maxsize=8)
def _later(size: int, dtype: torch.dtype) -> Any:
    """True, or what is added, where a key comes after the query."""
    import torch

    later = torch.ones(size, size, dtype=torch.bool).triu(1)
    if dtype is torch.bool:
        return later
    return torch.zeros(size, size, dtype=dtype).masked_fill(later, -math.inf)
