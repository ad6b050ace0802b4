"""From a batch to its loss: the three forms of `loss_fn`, distinguished once, by its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from flatout_train.errors import UsageError


def build(model: nn.Module, loss_fn: Callable[..., Any] | None) -> Callable[[Any], Tensor]:
    """The function `batch -> loss`: forward pass and loss; the loss is 0-d, with its graph.

    `loss_fn(model, batch)` if its first parameter is called `model`; if `loss_fn` is None, the
    `loss` of the result of `model(**batch)`; else `loss_fn(model(input), target)` of a pair
    `(input, target)`.
    The function raises UsageError if a batch or a model output does not fit its form.
    """
    if loss_fn is None:
        return lambda batch: _own_loss(model, batch)
    if takes_model(loss_fn):
        return lambda batch: loss_fn(model, batch)

    def of_pair(batch: Any) -> Tensor:
        input, target = batch
        return loss_fn(model(input), target)  # type: ignore[no-any-return]

    return of_pair


def takes_model(loss_fn: Callable[..., Any]) -> bool:
    """Whether the first parameter of `loss_fn` is called `model`."""
    try:
        parameters = inspect.signature(loss_fn).parameters
    except (TypeError, ValueError):  # functions written in C may have none
        return False
    return next(iter(parameters), None) == "model"


def _own_loss(model: nn.Module, batch: Any) -> Tensor:
    if not hasattr(batch, "keys"):
        raise UsageError(
            f"with loss_fn=None the model is called as model(**batch), so a batch must be a dict; "
            f"this batch is a {type(batch).__name__}. Yield dicts, or pass loss_fn"
        )
    output = model(**batch)
    if isinstance(output, dict):
        loss = output.get("loss")
    elif hasattr(output, "loss"):
        loss = output.loss
    else:
        raise UsageError(
            f"with loss_fn=None the model must return its loss; it returned a "
            f"{type(output).__name__}, which has no loss: pass loss_fn"
        )
    if loss is None:
        raise UsageError("the model returned no loss: the batch must hold its targets (labels)")
    return loss  # type: ignore[no-any-return]
