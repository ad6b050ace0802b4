"""Observed calls of a model: their arguments, copied into main memory, within limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from flatout_agent.speedups import nests
from flatout_agent.watch.tensors import samples_in, tensors_in

MOST_CALLS = 512
MOST_BYTES = 256 << 20
"""Limits on the inputs kept of an evaluation."""
ENOUGH_ROWS = 64
"""An evaluation with fewer rows is supplemented by an earlier one."""


@dataclass(frozen=True)
class SeenCall:
    """One call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: torch.Tensor | None = None
    """The expected answer from the data, as far as it was recognised."""

    @property
    def rows(self) -> int:
        return samples_in((self.args, self.kwargs))


def copied(nest: Any) -> Any:
    """A nest with its tensors copied to the CPU, outside any graph; a tensor that occurs twice is
    copied once.
    """
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            plain = tensor.detach().as_subclass(torch.Tensor)
            copies[id(tensor)] = plain.to("cpu", copy=True).contiguous()
        return copies[id(tensor)]

    with torch.inference_mode(mode=False):  # a copy made inside it could not be computed with
        return nests.change(nest, copy, lambda value: isinstance(value, torch.Tensor))


def size_bytes(nest: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(nest))


@dataclass
class Pool:
    """Calls spread evenly over all that are offered, within the limits.

    When full, every other call is dropped, and from then on only every other one is taken.
    """

    most_calls: int = MOST_CALLS
    most_bytes: int = MOST_BYTES
    kept: list[tuple[SeenCall, int]] = field(default_factory=list)
    offered: int = 0
    stride: int = 1
    rows: int = 0
    """The rows of all calls that were offered."""

    def wants(self) -> bool:
        """Count one call; returns whether it is to be kept."""
        self.offered += 1
        return (self.offered - 1) % self.stride == 0

    def add(self, call: SeenCall, size: int) -> None:
        if size > self.most_bytes:
            return
        self.kept.append((call, size))
        while (
            len(self.kept) > self.most_calls or sum(size for _, size in self.kept) > self.most_bytes
        ):
            self.kept = self.kept[::2]
            self.stride *= 2

    @property
    def calls(self) -> list[SeenCall]:
        return [call for call, _ in self.kept]

    @property
    def kept_rows(self) -> int:
        return sum(call.rows for call, _ in self.kept)


@dataclass
class SeenModel:
    """The calls of one root model: those of its last evaluation, of one before, and of training."""

    training: Pool = field(default_factory=lambda: Pool(MOST_CALLS // 8, MOST_BYTES // 4))
    evaluation: Pool = field(default_factory=Pool)
    earlier: Pool | None = None
    """The latest earlier evaluation with enough rows, else the one with most."""
    new_pass: bool = False
    """Whether the model has been trained since its last call in evaluation."""

    def pool(self, evaluation: bool) -> Pool:
        """Where a call that begins now belongs."""
        if not evaluation:
            self.new_pass = True
            return self.training
        if self.new_pass and self.evaluation.offered:
            last, before = self.evaluation, self.earlier
            if before is None or last.kept_rows >= min(ENOUGH_ROWS, before.kept_rows):
                self.earlier = last
            self.evaluation = Pool()
        self.new_pass = False
        return self.evaluation

    @property
    def evaluated(self) -> bool:
        return bool(self.evaluation.kept or (self.earlier is not None and self.earlier.kept))

    def calls(self) -> tuple[list[SeenCall], bool]:
        """The calls to take, and whether they come from an evaluation."""
        if not self.evaluated:
            return self.training.calls, False
        calls = self.evaluation.calls
        if self.evaluation.kept_rows < ENOUGH_ROWS and self.earlier is not None:
            calls = calls + self.earlier.calls
        return calls, True
