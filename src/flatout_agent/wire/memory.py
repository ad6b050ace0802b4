"""The part of the contract that is about the memory of a training step; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryOrders:
    """How to measure what a step of the program takes. It is ended when that is known."""

    cut: bool = True
    """Train on the first rows of each batch of a loader: a quarter first, then half of them."""


@dataclass(frozen=True)
class MemoryAtRows:
    """What one step took, in bytes beyond weights and optimizer state.

    A block is one of the model's repeated modules, such as a transformer layer.
    """

    rows: int
    """Samples in each call of the model."""
    peak_bytes: int
    """Most at once in forward and backward, gradients included."""
    activations_bytes: int
    """Most at once in forward and backward, without gradients; batch and temporaries included."""
    gradients_then_bytes: int
    """Gradients that were there at that moment."""
    kept_bytes: int
    """Without gradients, when the optimizer begins: the batch, outputs that the program holds."""
    update_bytes: int
    """What the optimizer takes for itself at most while it steps."""
    saved_bytes: int = 0
    """Kept by the forward passes of all blocks for the backward pass, their outputs included."""
    outputs_bytes: int = 0
    """The outputs of all blocks."""
    again_bytes: int = 0
    """Most at once, without gradients of weights, while a block runs forward again and backward and
    of those before it the outputs alone are kept.
    """


@dataclass(frozen=True)
class MemorySeen:
    """What a training step of this program takes, in bytes, and what that depends on."""

    model: str
    """Class of the largest model that is trained."""
    optimizer: str
    device: str
    """Type of the device that it was measured on."""
    parameters_bytes: int
    buffers_bytes: int
    gradients_bytes: int
    state_bytes: int
    """Of the optimizer."""
    blocks: int
    blocks_bytes: int
    """Parameters of all blocks."""
    largest_block_bytes: int
    points: tuple[MemoryAtRows, ...]
    """Steps with different numbers of rows, as far as that could be had; fewest rows first."""
    batch_rows: int
    """Rows in a batch of the program as it is written."""
    micro_steps: float = 1.0
    """Backward passes per step."""
    allocator_bytes: int | None = None
    """Most bytes in use in the measured steps by the device's own allocator; None: it has none."""
    tensors_bytes: int = 0
    """Most bytes of tensors in the measured steps, to be compared with that."""
    kind: str = "memory"
