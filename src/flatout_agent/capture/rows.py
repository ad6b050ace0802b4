"""Which dimension of inputs and outputs counts samples, as seen by asking for fewer of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[Tensors], Tensors]
CLOSE = 1e-4
"""Relative error of a result that is the same but for the order of its sums."""


@dataclass(frozen=True)
class Rows:
    """Where samples are counted: in the first dimension of these inputs and outputs."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]

    def count(self, inputs: Tensors) -> int:
        return next(int(t.shape[0]) for t, of in zip(inputs, self.inputs, strict=True) if of)

    def first(self, inputs: Tensors, count: int) -> Tensors:
        """Their first samples."""
        pairs = zip(inputs, self.inputs, strict=True)
        return tuple(tensor[:count].clone() if of else tensor for tensor, of in pairs)

    def repeated(self, inputs: Tensors, count: int) -> Tensors:
        """As many samples, the same ones again and again."""
        index = torch.arange(count) % self.count(inputs)
        pairs = zip(inputs, self.inputs, strict=True)
        return tuple(tensor[index] if of else tensor for tensor, of in pairs)


def found(samples: Sequence[Tensors], run: Run) -> Rows | None:
    """The rows, where each sample's result is its own; None: they depend on each other."""
    inputs = max(samples, key=_first)
    count = _first(inputs)
    if not count:
        return None
    counted = tuple(
        all(s[at].dim() > 0 and s[at].shape[0] == _first(s) for s in samples)
        for at in range(len(inputs))
    )
    if not any(counted):
        return None
    rows = Rows(counted, ())
    if count < 2:
        inputs, count = rows.repeated(inputs, 2), 2
    try:
        whole, part = run(inputs), run(rows.first(inputs, count // 2))
    except Exception:
        return None
    outputs = tuple(_counted(one, other, count) for one, other in zip(whole, part, strict=True))
    if not any(outputs) or not all(
        close(other, one[: count // 2] if of else one)
        for one, other, of in zip(whole, part, outputs, strict=True)
    ):
        return None
    return Rows(counted, outputs)


def _counted(whole: torch.Tensor, part: torch.Tensor, count: int) -> bool:
    return whole.dim() > 0 and whole.shape[0] == count and part.shape[0] == count // 2


def _first(inputs: Tensors) -> int:
    return next((int(tensor.shape[0]) for tensor in inputs if tensor.dim()), 0)


def close(found_: torch.Tensor, wanted: torch.Tensor, limit: float = CLOSE) -> bool:
    """Whether they are equal but for rounding; integers are equal or not."""
    if found_.shape != wanted.shape or found_.dtype != wanted.dtype:
        return False
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return torch.equal(found_, wanted)
    finite = wanted.isfinite()
    if not torch.equal(finite, found_.isfinite()):
        return False
    one, other = found_[finite], wanted[finite]
    scale = float(other.abs().double().norm())
    return float((one - other).abs().double().norm()) <= limit * max(scale, 1e-12)
