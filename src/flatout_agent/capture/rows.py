"""The dimension of inputs and outputs that counts samples, found by asking for fewer samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[Tensors], Tensors]
Places = tuple[int | None, ...]
CLOSE = 1e-4
"""Relative error of a result that is the same except for the order of its sums."""


@dataclass(frozen=True)
class Rows:
    """The dimension of each input and output that counts samples, or None if none does."""

    inputs: Places
    outputs: Places

    @property
    def first(self) -> bool:
        """Whether samples are always counted in the first dimension."""
        return not any(self.inputs) and not any(self.outputs) and None not in self.outputs

    def count(self, inputs: Tensors) -> int:
        return next(
            int(tensor.shape[dim])
            for tensor, dim in zip(inputs, self.inputs, strict=True)
            if dim is not None
        )

    def repeated(self, inputs: Tensors, count: int) -> Tensors:
        """`count` samples: the first ones, repeated if there are fewer."""
        index = torch.arange(count) % self.count(inputs)
        return tuple(
            tensor if dim is None else tensor.index_select(dim, index)
            for tensor, dim in zip(inputs, self.inputs, strict=True)
        )


def found(samples: Sequence[Tensors], run: Run) -> Rows | None:
    """The rows if each sample's result is independent, or None if they depend on each other.

    Samples are counted in the first dimension, or in the second as in (time, batch, features).
    """
    for dim in (0, 1):
        inputs = _inputs(samples, dim)
        rows = _tried(samples, Rows(inputs, ()), run) if inputs is not None else None
        if rows is not None:
            return rows
    return None


def _inputs(samples: Sequence[Tensors], dim: int) -> Places | None:
    """The dimension of each input with the size that the first one has in `dim`."""
    counts = [next((int(t.shape[dim]) for t in s if t.dim() > dim), 0) for s in samples]
    if not all(counts):
        return None

    def place(at: int) -> int | None:
        for candidate in dict.fromkeys((dim, 0)):
            pairs = zip(samples, counts, strict=True)
            if all(s[at].dim() > candidate and s[at].shape[candidate] == n for s, n in pairs):
                return candidate
        return None

    found_ = tuple(map(place, range(len(samples[0]))))
    return None if all(dim is None for dim in found_) else found_


def _tried(samples: Sequence[Tensors], rows: Rows, run: Run) -> Rows | None:
    inputs = max(samples, key=rows.count)
    count = max(2, rows.count(inputs))
    half = count // 2
    try:
        whole, part = run(rows.repeated(inputs, count)), run(rows.repeated(inputs, half))
    except Exception:
        return None
    outputs = tuple(_counted(one, other, count) for one, other in zip(whole, part, strict=True))
    if all(dim is None for dim in outputs):
        return None
    for one, other, dim in zip(whole, part, outputs, strict=True):
        if not close(other, one if dim is None else one.narrow(dim, 0, half)):
            return None
    return Rows(rows.inputs, outputs)


def _counted(whole: torch.Tensor, part: torch.Tensor, count: int) -> int | None:
    if whole.dim() != part.dim():
        return None
    sizes = enumerate(zip(whole.shape, part.shape, strict=True))
    return next((dim for dim, pair in sizes if pair == (count, count // 2)), None)


def close(found_: torch.Tensor, wanted: torch.Tensor, limit: float = CLOSE) -> bool:
    """Whether they are equal except for rounding; integers must be equal."""
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
