"""The quality of the model's answers, as far as the data contains the expected ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

IGNORED = -100
"""The target that torch's losses ignore by default."""


def measured(
    outputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor | None], name: str, of: str
) -> dict[str, Any] | None:
    """The metric of all samples, or None if the targets are of no known kind.

    name: of the output. of: whose rows they are.
    """
    pairs = [(o, t) for o, t in zip(outputs, targets, strict=True) if t is not None]
    if not pairs:
        return None
    kind = _kind(*pairs[0])
    if kind is None or any(_kind(*pair) != kind for pair in pairs):
        return None
    sums = [_SCORES[kind](output, target) for output, target in pairs]
    count = sum(number for _, number in sums)
    if not count:
        return None
    rows = sum(int(target.shape[0]) for _, target in pairs)
    how = f"{_HOW[kind]} of output {name!r} against the targets of {rows:,} rows of {of}"
    return {"name": kind, "value": sum(score for score, _ in sums) / count, "how": how}


def _kind(output: torch.Tensor, target: torch.Tensor) -> str | None:
    if not output.is_floating_point() or not output.dim() or not target.dim():
        return None
    whole = not (target.is_floating_point() or target.is_complex())
    if whole and target.dtype is not torch.bool and classes_of(output, target) is not None:
        return "accuracy"
    if output.numel() != target.numel() or output.shape[0] != target.shape[0]:
        return None
    if whole or bool(((target == 0) | (target == 1)).all()):
        return "binary accuracy" if bool(((target == 0) | (target == 1)).all()) else None
    return "mean squared error" if output.shape == target.shape else None


def classes_of(output: torch.Tensor, target: torch.Tensor) -> int | None:
    """The dimension of the output that counts classes, or None if there is none."""
    if output.dim() == target.dim() + 1:
        for dim in (1, output.dim() - 1):
            rest = [size for place, size in enumerate(output.shape) if place != dim]
            if rest == list(target.shape) and output.shape[dim] > int(target.max()):
                return dim if output.shape[dim] > 1 else None
    return None


def _accuracy(output: torch.Tensor, target: torch.Tensor) -> tuple[float, int]:
    counted = target != IGNORED
    dim = classes_of(output, target)
    right = (output.argmax(dim=1 if dim is None else dim) == target) & counted
    return float(right.sum()), int(counted.sum())


def _binary_accuracy(output: torch.Tensor, target: torch.Tensor) -> tuple[float, int]:
    probabilities = bool(((output >= 0) & (output <= 1)).all())
    said = output.reshape(-1) > (0.5 if probabilities else 0.0)
    return float((said == (target.reshape(-1) > 0)).sum()), target.numel()


def _squared_error(output: torch.Tensor, target: torch.Tensor) -> tuple[float, int]:
    return float((output.double() - target.double()).square().sum()), target.numel()


_SCORES = {
    "accuracy": _accuracy,
    "binary accuracy": _binary_accuracy,
    "mean squared error": _squared_error,
}
_HOW = {
    "accuracy": "share of the largest entries that are right,",
    "binary accuracy": "share of signs that are right,",
    "mean squared error": "mean squared difference",
}
