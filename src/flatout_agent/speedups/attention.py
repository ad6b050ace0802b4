"""torch's attention function, which several boosts replace, and how it is computed in bfloat16."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.stand_in import Ways, rounded_in_training

if TYPE_CHECKING:
    import torch

MOST_WEIGHTS, MOST_WEIGHTS_AMX = 1 << 23, 1 << 24
"""Without dropout, up to so many weights are computed as a whole: they are kept for the backward
pass, which tiles do not need, and tiles of more than 512 keys are as fast."""
TILE_KEYS, HALF_TILE_KEYS = 512, 256
"""CPUs with AMX are fast at tiles in bfloat16 that are filled: of so many keys. Half filled, they
take as long as tiles in float32, less filled up to six times as long."""


def under_autocast(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    without_dropout: bool,
    slow_tiles: bool,
) -> Any:
    """The attention that autocast computes in bfloat16 on a CPU, in a faster way.

    One of its ways. Takes calls that have a gradient. torch computes those with dropout in
    float32, and those without by tiles, whose backward pass in bfloat16 takes longer than in
    float32: up to three times with AVX512_BF16, and with AMX up to five times where a tile is not
    filled. With dropout, and up to `MOST_WEIGHTS`, a few operations on the matrix of all weights in
    bfloat16 are faster than both. What is larger is computed by tiles in float32 where those in
    bfloat16 take longer.

    without_dropout: take calls without dropout, too. slow_tiles: however filled they are.
    """
    import torch

    tensors = query, key, value
    if (
        not rounded_in_training(*tensors)
        or any(tensor.dtype.itemsize > 4 for tensor in tensors)
        or not query.numel()
        or not (dropout_p or without_dropout)
    ):
        return None
    query, key, value = (tensor.to(torch.bfloat16) for tensor in tensors)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    simple = query.dim() == 4 and query.shape[:2] == key.shape[:2] == value.shape[:2]
    if attn_mask is not None:
        simple = simple and not attn_mask.requires_grad and not is_causal
    with torch.autocast("cpu", enabled=False):
        keys = key.shape[-2]
        most = MOST_WEIGHTS if slow_tiles else MOST_WEIGHTS_AMX if keys < TILE_KEYS else 0
        few = query.shape[:3].numel() * keys <= most
        if simple and (dropout_p or few):
            bias = _bias(query, key, attn_mask, is_causal)
            return _whole(query, key, value, bias, dropout_p, scale)
        if dropout_p or not (slow_tiles or keys < HALF_TILE_KEYS):
            return None
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.float()
        # The inputs are those that autocast would round.
        attended = attention().original(
            query.float(),
            key.float(),
            value.float(),
            attn_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    return attended.to(torch.bfloat16)


def _bias(
    query: torch.Tensor, key: torch.Tensor, attn_mask: torch.Tensor | None, is_causal: bool
) -> torch.Tensor | None:
    """What is added to the scores, or None."""
    import torch

    if is_causal:
        shape = query.shape[2], key.shape[2]
        return torch.full(shape, -math.inf, dtype=torch.bfloat16).triu_(1)
    if attn_mask is None or attn_mask.is_floating_point():
        return attn_mask if attn_mask is None else attn_mask.to(torch.bfloat16)
    zeros = torch.zeros(attn_mask.shape, dtype=torch.bfloat16)
    return zeros.masked_fill_(~attn_mask, -math.inf)


def _whole(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    dropout_p: float,
    scale: float,
) -> torch.Tensor:
    """Attention by operations on the matrix of all weights, in the dtype of its inputs."""
    import torch

    rows, heads, asked, _ = query.shape
    shape = rows * heads, asked, key.shape[2]
    query, key, value = (t.reshape(rows * heads, *t.shape[2:]) for t in (query, key, value))
    if bias is None:
        added = query.new_empty(()).expand(shape)
    elif bias.dim() <= 2:
        added = bias.expand(shape)
    else:
        added = bias.expand(rows, heads, *shape[1:]).reshape(shape)
    scores = torch.baddbmm(added, query, key.mT, beta=0 if bias is None else 1, alpha=scale)
    if bias is None or not bool((bias.amax(-1) == -math.inf).any()):
        weights = torch.softmax(scores, -1)
    else:  # a row that may attend to nothing gets zeros from torch, but NaN from softmax
        blind = scores.amax(-1, keepdim=True) == -math.inf
        weights = torch.softmax(scores.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
    if dropout_p:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    return (weights @ value).view(rows, heads, asked, -1)


@functools.cache
def attention() -> Ways:
    """The instance of this process; kept, since torch's table refers to it by address."""
    import torch

    return Ways(torch.nn.functional, "scaled_dot_product_attention")
