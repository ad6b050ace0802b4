"""MemoryFit: the device memory that a training step needs, and the devices on which it fits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StrategyFit:
    """Bytes that each device needs if the job is divided in one way."""

    strategy: str
    """dp, dp+recompute, fsdp, fsdp+recompute, hsdp, hsdp+recompute, tp, pp."""
    rows: int
    """Samples in each device's part of the batch."""
    parameters_bytes: int
    """Parameters with buffers, and with what is gathered from other devices at the same time."""
    gradients_bytes: int
    state_bytes: int
    activations_bytes: int
    peak_bytes: int
    """Peak, in forward and backward or in the optimizer's step."""
    margin_bytes: int
    """Reserve for workspaces, fragmentation and the device's context."""
    fits: bool


@dataclass(frozen=True)
class MemoryFit:
    """The answer of `flatout memory`; sizes in bytes."""

    command: tuple[str, ...]
    model: str
    """Class of the largest trained model."""
    optimizer: str
    measured_on: str
    """Type of device: cpu, cuda."""
    measured_rows: tuple[int, ...]
    """Samples per call of the model in the measured steps."""
    batch_rows: int
    """Samples in a batch of the unchanged script."""
    parameters_bytes: int
    buffers_bytes: int
    gradients_bytes: int
    state_bytes: int
    activations_fixed_bytes: int
    """The part of the activations that does not depend on the batch size."""
    activations_row_bytes: int
    """What each sample adds to the activations."""
    activations_bytes: int
    """Activations with the batch of the unchanged script."""
    update_bytes: int
    """Temporary memory of the optimizer's step."""
    peak_bytes: int
    """Peak on a single device with the whole batch."""
    devices: int
    nodes: int
    memory_bytes: int
    """Memory of each device."""
    strategies: tuple[StrategyFit, ...]
    """Possible strategies, the one that costs least time first."""
    chosen: str | None
    """The first strategy that fits, or None if none does."""
    notes: tuple[str, ...]
    run_folder: str
    wall_s: float
