"""The device memory of training steps: a `MemorySeen` from a few steps.

The caller passes every operator's output to `tensors` (from a dispatch mode) and says where steps
begin and end. The purpose of a tensor is read from the models and optimizers. Works on real tensors
and on fake ones, which take no memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.repeated_blocks import repeated_blocks
from flatout_agent.speedups.tensor_bytes import TensorBytes
from flatout_agent.wire.memory import MemoryAtRows, MemorySeen

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass
class _Forward:
    """Memory that the blocks kept in one call of the model."""

    saved: int = 0
    outputs: int = 0
    again: int = 0
    open: list[int] = field(default_factory=list)
    """Transient bytes at the beginning of the blocks under way."""


class StepMemory:
    """Measures the steps of some models, one after the other; each gives a `MemoryAtRows`."""

    def __init__(self, device_type: str) -> None:
        self.tensors = TensorBytes(device_type)
        self.points: list[MemoryAtRows] = []
        self.gradients_bytes = 0
        self.state_bytes = 0
        self.largest_total = 0
        """The most bytes of tensors at once, over all measured steps."""
        self._device_type = device_type
        self._models: list[nn.Module] = []
        self._blocks: list[nn.Module] = []
        self._removals: list[Any] = []
        self._rows = 0
        self._pass: tuple[int, int, int, int] | None = None
        self._most = _Forward()
        self._now = _Forward()

    def add_model(
        self, model: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]] | None = None
    ) -> None:
        """Watch its parameters, buffers and blocks. tensors: other tensors that represent its
        parameters and buffers.
        """
        named = list(tensors) if tensors is not None else _named(model)
        for _, tensor in named:
            self.tensors.see(tensor, "weights")
            if tensor.requires_grad and tensor.is_leaf:
                watched: Any = tensor  # torch's hook has no types
                self._removals.append(watched.register_post_accumulate_grad_hook(self._accumulated))
        self._models.append(model)
        for block in repeated_blocks(model):
            if block not in self._blocks:
                self._blocks.append(block)
                before = block.register_forward_pre_hook(self._block_begins)
                self._removals += [before, block.register_forward_hook(self._block_ends)]

    def begin(self, rows: int) -> None:
        """The first training call of a step begins."""
        self._rows, self._pass = rows, None
        self._most = _Forward()
        self.tensors.start_peak()

    def call(self) -> None:
        """A root model is about to be called in training."""
        self._now = _Forward()

    def update_begins(self) -> None:
        """An optimizer is about to step for the first time since `begin`."""
        tensors = self.tensors
        if self._pass is None:
            kept = tensors.in_use["transient"]
            self._pass = tensors.peak, tensors.transient_peak, tensors.gradients_then, kept
            self.largest_total = max(self.largest_total, self._held() + tensors.peak)
            self.gradients_bytes = max(self.gradients_bytes, tensors.in_use["gradients"])
            tensors.start_peak()

    def update_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """That optimizer has stepped: the tensors that it created and keeps are its state."""
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if hasattr(value, "untyped_storage"):
                    self.tensors.see(value, "state")
        self.state_bytes = self.tensors.in_use["state"]

    def end(self) -> None:
        """The step is over."""
        if self._pass is None:
            return
        peak, activations, gradients, kept = self._pass
        self.largest_total = max(self.largest_total, self._held() + self.tensors.peak)
        self.points.append(
            MemoryAtRows(
                rows=self._rows,
                peak_bytes=peak,
                activations_bytes=activations,
                gradients_then_bytes=gradients,
                kept_bytes=kept,
                update_bytes=max(0, self.tensors.transient_peak - kept),
                saved_bytes=self._most.saved,
                outputs_bytes=self._most.outputs,
                again_bytes=self._most.again,
            )
        )

    def close(self) -> None:
        """Remove all hooks."""
        for hook in self._removals:
            hook.remove()
        self._removals = []

    def seen(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        batch_rows: int,
        micro_steps: float = 1.0,
        allocator_bytes: int | None = None,
    ) -> MemorySeen:
        """All measurements; for each number of rows, the step that took most."""
        sizes = [_bytes(block.parameters()) for block in self._blocks]
        most: dict[int, MemoryAtRows] = {}
        for point in self.points:
            if point.rows not in most or point.peak_bytes > most[point.rows].peak_bytes:
                most[point.rows] = point
        models = sorted(self._models, key=lambda model: _bytes(model.parameters()))
        return MemorySeen(
            model=type(models[-1]).__name__,
            optimizer=", ".join(dict.fromkeys(type(one).__name__ for one in optimizers)),
            device=self._device_type,
            parameters_bytes=_bytes(p for model in models for p in model.parameters()),
            buffers_bytes=_bytes(b for model in models for b in model.buffers()),
            gradients_bytes=self.gradients_bytes,
            state_bytes=self.state_bytes,
            blocks=len(self._blocks),
            blocks_bytes=_bytes(p for block in self._blocks for p in block.parameters()),
            largest_block_bytes=max(sizes, default=0),
            points=tuple(most[rows] for rows in sorted(most)),
            batch_rows=batch_rows,
            micro_steps=micro_steps,
            allocator_bytes=allocator_bytes,
            tensors_bytes=self.largest_total,
        )

    def _held(self) -> int:
        return self.tensors.in_use["weights"] + self.tensors.in_use["state"]

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.tensors.see(parameter.grad, "gradients")

    def _block_begins(self, block: nn.Module, args: Any) -> None:
        if not _in_backward():
            self._now.open.append(self.tensors.in_use["transient"])
            self.tensors.largest = 0

    def _block_ends(self, block: nn.Module, args: Any, output: Any) -> None:
        if _in_backward() or not self._now.open:
            return
        now, in_use = self._now, self.tensors.in_use["transient"]
        before = now.open.pop()
        saved = max(0, in_use - before)
        outputs = min(saved, _bytes(_tensors(output)))
        # In the backward pass, the gradients of its output and of an operator's result and input
        # are also there.
        own = saved + outputs + 2 * self.tensors.largest
        now.again = max(now.again, before - now.saved + now.outputs + own)
        now.saved += saved
        now.outputs += outputs
        if now.saved > self._most.saved:
            self._most = dataclasses.replace(now, open=[])


def _named(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _in_backward() -> bool:
    import torch

    return torch._C._current_graph_task_id() != -1


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of these tensors, each once; tensors that share a storage count as one."""
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    from flatout_agent.speedups import nests

    return nests.tensors(value)
