"""MemoryFit: what a training step takes of a device's memory, and on which devices it fits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StrategyFit:
    """Bytes that each device needs where the job is divided in one way."""

    strategy: str
    """dp, dp+recompute, fsdp, fsdp+recompute, hsdp, hsdp+recompute, tp, pp."""
    rows: int
    """Samples in each device's part of the batch."""
    parameters_bytes: int
    """With buffers, and with what is gathered from other devices at the same time."""
    gradients_bytes: int
    state_bytes: int
    activations_bytes: int
    peak_bytes: int
    """Most at once, in forward and backward or in the optimizer's step."""
    margin_bytes: int
    """Beyond that for workspaces, fragmentation and the device's context."""
    fits: bool


@dataclass(frozen=True)
class MemoryFit:
    """The answer of `flatout memory`; sizes in bytes."""

    command: tuple[str, ...]
    model: str
    """Class of the largest model that is trained."""
    optimizer: str
    measured_on: str
    """Type of device: cpu, cuda."""
    measured_rows: tuple[int, ...]
    """Samples per call of the model in the steps that were measured."""
    batch_rows: int
    """Samples in a batch of the script as it is written."""
    parameters_bytes: int
    buffers_bytes: int
    gradients_bytes: int
    state_bytes: int
    activations_fixed_bytes: int
    """Of the activations, what does not depend on the batch size ..."""
    activations_row_bytes: int
    """... and what each sample adds."""
    activations_bytes: int
    """With the batch as the script is written."""
    update_bytes: int
    """What the optimizer takes for itself while it steps."""
    peak_bytes: int
    """Most at once on a single device with the whole batch."""
    devices: int
    nodes: int
    memory_bytes: int
    """Memory of each device."""
    strategies: tuple[StrategyFit, ...]
    """Those that come into question, the one that costs least time first."""
    chosen: str | None
    """The first that fits, or None if none does."""
    notes: tuple[str, ...]
    run_folder: str
    wall_s: float
