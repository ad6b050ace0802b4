"""Tensor parallel: the matrix products of each block divided between the ranks of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from flatout_train.errors import UsageError

TensorPlan = Mapping[str, ParallelStyle | str]
"""Name of a module, `*` for a number in it -> DTensor's style, or Transformers' word for it."""
_STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise": RowwiseParallel,
}
"""The meaning of Transformers' words."""


def plan_of(model: nn.Module) -> dict[str, str] | None:
    """The plan that a Transformers model brings along, or None if it has none."""
    config = getattr(model, "config", None)
    base = getattr(config, "base_model_tp_plan", None)
    head = getattr(model, "_tp_plan", None)
    if not base and not head:
        return None
    prefix = getattr(model, "base_model_prefix", "")
    inner = f"{prefix}." if prefix and hasattr(model, prefix) else ""
    found = {f"{inner}{name}": str(style) for name, style in (base or {}).items()}
    return {**found, **{name: str(style) for name, style in (head or {}).items()}}


def divide(model: nn.Module, mesh: DeviceMesh, plan: TensorPlan) -> None:
    """Divide the modules that the plan names; raises UsageError if that is impossible."""
    ways = mesh.size()
    _check_heads(model, ways)
    tied = _tied_ends(model)
    styles = {
        name: _style(name, style) for name, style in plan.items() if name.split(".")[-1] not in tied
    }
    parallelize_module(model, mesh, styles)
    if not any(type(parameter).__name__ == "DTensor" for parameter in _tensors(model)):
        names = ", ".join(list(plan)[:3])
        raise UsageError(f"no module of {type(model).__name__} has a name of the plan ({names})")


def separately(optimizer: torch.optim.Optimizer) -> None:
    """Update parameter by parameter: `foreach` does not mix divided and whole ones."""
    for group in optimizer.param_groups:
        if "foreach" in group and not group.get("fused"):
            group["foreach"] = False


def _style(name: str, style: ParallelStyle | str) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    if style not in _STYLES:
        raise UsageError(
            f"{name}: flatout.parallelize cannot apply the style {style!r} of tensor parallelism, "
            f"only {', '.join(_STYLES)}: load the model with Transformers' DistributedConfig, or "
            'pass plan="fsdp"'
        )
    return _STYLES[style]()


def _check_heads(model: nn.Module, ways: int) -> None:
    config: Any = getattr(model, "config", None)
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % ways:
            raise UsageError(
                f"{name} is {heads}, which {ways} devices cannot share: use a divisor of it for "
                'each node, or plan="fsdp"'
            )


def _tied_ends(model: nn.Module) -> set[str]:
    """Embedding and output layer if they share one weight, which stays whole."""
    ends = {
        name: getattr(model, f"get_{name}_embeddings", lambda: None)()
        for name in ("input", "output")
    }
    weights = [getattr(end, "weight", None) for end in ends.values()]
    if weights[0] is None or weights[0] is not weights[1]:
        return set()
    found = {name for name, module in model.named_modules() if module in ends.values()}
    return {name.split(".")[-1] for name in found}


def _tensors(model: nn.Module) -> list[Any]:
    return [parameter.data for parameter in model.parameters()]
