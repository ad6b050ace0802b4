"""The part of the contract that is about the memory of a training step; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryOrders:
    """How to measure the memory of a program's step. The program is ended when that is known."""

    cut: bool = True
    """Train on the first rows of each batch of a loader: first a quarter, then half of them."""


@dataclass(frozen=True)
class MemoryAtRows:
    """The memory of one step, in bytes beyond weights and optimizer state.

    A block is one of the model's repeated modules, such as a transformer layer.
    """

    rows: int
    """Samples in each call of the model."""
    peak_bytes: int
    """Peak in forward and backward, including gradients."""
    activations_bytes: int
    """Peak in forward and backward, without gradients but including batch and temporaries."""
    gradients_then_bytes: int
    """Gradients at that moment."""
    kept_bytes: int
    """Bytes without gradients when the optimizer begins: the batch, and outputs that the program
    holds."""
    update_bytes: int
    """The most that the optimizer itself takes while it steps."""
    saved_bytes: int = 0
    """Kept by the forward passes of all blocks for the backward pass, including their outputs."""
    outputs_bytes: int = 0
    """The outputs of all blocks."""
    again_bytes: int = 0
    """Peak, without gradients of weights, while a block runs forward again and backward, and only
    the outputs of earlier blocks are kept.
    """


@dataclass(frozen=True)
class MemorySeen:
    """The memory of a training step of this program, in bytes, and what it depends on."""

    model: str
    """Class of the largest trained model."""
    optimizer: str
    device: str
    """Type of the device that it was measured on."""
    parameters_bytes: int
    buffers_bytes: int
    gradients_bytes: int
    state_bytes: int
    """State of the optimizer."""
    blocks: int
    blocks_bytes: int
    """Bytes of all blocks' parameters."""
    largest_block_bytes: int
    points: tuple[MemoryAtRows, ...]
    """Steps with different numbers of rows, as far as available; fewest rows first."""
    batch_rows: int
    """Rows in a batch of the program as written."""
    micro_steps: float = 1.0
    """Backward passes per step."""
    allocator_bytes: int | None = None
    """The most bytes in use in the measured steps according to the device's allocator, or None if
    it has none."""
    tensors_bytes: int = 0
    """The most bytes of tensors in the measured steps, for comparison."""
    kind: str = "memory"
