"""Gradients of gradients through a fused attention call, which its kernel does not have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def make_differentiable_twice(out: torch.Tensor, scale: float, causal: bool) -> None:
    """Fused kernels have no second derivative: where one may be taken, compute as written."""
    import torch

    node = out.grad_fn
    for _ in range(4):
        if node is None or hasattr(node, "_saved_query"):
            break
        node = node.next_functions[0][0] if node.next_functions else None
    if node is None:
        return

    def as_written(gradients: Any, above: Any) -> Any:
        if not torch.is_grad_enabled():
            return None
        return _written_gradients(torch._C._current_autograd_node(), gradients, above[0], scale)

    node.register_hook(as_written)


def _written_gradients(node: Any, gradients: Any, above: Any, scale: float) -> Any:
    """The gradients of a fused call, with a graph of their own."""
    import torch

    if getattr(node, "_saved_dropout_p", 0.0):
        return None
    parts = [node._saved_query, node._saved_key, node._saved_value]
    bias = getattr(node, "_saved_attn_mask", None)
    bias = getattr(node, "_saved_attn_bias", None) if bias is None else bias
    q, k, v = parts
    scores = (q @ k.transpose(-1, -2)) * scale
    if getattr(node, "_saved_is_causal", False):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    out = (scores if bias is None else scores + bias).softmax(-1) @ v
    parts += [bias] if bias is not None and len(gradients) > 3 else []
    positions = [
        n for n, part in enumerate(parts) if part.requires_grad and gradients[n] is not None
    ]
    grads = torch.autograd.grad(
        out, [parts[n] for n in positions], above, create_graph=True, allow_unused=True
    )
    replaced = list(gradients)
    for n, grad in zip(positions, grads, strict=True):
        replaced[n] = grad
    return tuple(replaced)
