"""The ways to divide a training job over devices, and the memory that each device then needs.

Arithmetic on one measured step. Sizes are in bytes; rows are samples of one device's batch.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flatout_agent.wire import MemoryAtRows, MemorySeen

MARGIN = 0.1
"""Share of the peak for kernels' workspaces, fragmentation and memory outside tensors ..."""
CONTEXT_BYTES = 10**9
"""... and bytes for the device's context with its libraries, at most a tenth of its memory."""


class Strategy(enum.Enum):
    """The strategies in the order in which they are tried: the first that fits costs least time."""

    DP = "dp"
    """Each device has the whole model and its own rows of the batch (DistributedDataParallel)."""
    DP_RECOMPUTE = "dp+recompute"
    """... and computes its blocks' activations a second time instead of keeping them."""
    FSDP = "fsdp"
    """Weights, gradients and optimizer state are sharded over all devices (`fully_shard`)."""
    FSDP_RECOMPUTE = "fsdp+recompute"
    HSDP = "hsdp"
    """Sharded within each node, replicated across nodes."""
    HSDP_RECOMPUTE = "hsdp+recompute"
    TP = "tp"
    """The matrix products of each block are divided within a node, and the rest as in FSDP."""
    PP = "pp"
    """Each device has some of the blocks, and micro-batches pass from one to the next."""

    @property
    def recomputes(self) -> bool:
        return self.value.endswith("recompute")


@dataclass(frozen=True)
class Devices:
    """Equal devices in equal nodes."""

    per_node: int
    memory_bytes: int
    """Bytes of memory of each device."""
    nodes: int = 1

    @property
    def count(self) -> int:
        return self.per_node * self.nodes


@dataclass(frozen=True)
class Need:
    """Bytes that each device needs under one strategy."""

    strategy: Strategy
    rows: int
    parameters: int
    """Parameters, including buffers and what is gathered from other devices at the same time."""
    gradients: int
    state: int
    activations: int
    pass_peak: int
    """Peak in forward and backward."""
    update_peak: int
    """Peak in the optimizer's step."""
    memory_bytes: int
    """Memory of the device."""

    @property
    def peak(self) -> int:
        return max(self.pass_peak, self.update_peak)

    @property
    def margin(self) -> int:
        return round(MARGIN * self.peak + min(CONTEXT_BYTES, MARGIN * self.memory_bytes))

    @property
    def fits(self) -> bool:
        return self.peak + self.margin <= self.memory_bytes


def line(points: Sequence[MemoryAtRows], of: Callable[[MemoryAtRows], int]) -> tuple[float, float]:
    """`a, b` of a + b x rows through the points with fewest and most rows.

    With a single point, everything is assumed to grow with the rows.
    """
    first, last = points[0], points[-1]
    if first.rows == last.rows:
        return 0.0, max(of(first), of(last)) / max(1, last.rows)
    slope = (of(last) - of(first)) / (last.rows - first.rows)
    if slope <= 0:
        return float(max(of(first), of(last))), 0.0
    return of(first) - slope * first.rows, slope


def at(seen: MemorySeen, rows: int, of: Callable[[MemoryAtRows], int]) -> int:
    """The value of a field of the points at this many rows."""
    start, slope = line(seen.points, of)
    return max(0, math.ceil(start + slope * rows))


def rows_per_device(seen: MemorySeen, copies: int) -> int:
    """Rows of each device if `copies` devices share the program's batch."""
    return max(1, math.ceil(seen.batch_rows / copies))


def strategies(seen: MemorySeen, devices: Devices) -> list[Strategy]:
    """The possible strategies, cheapest in time first."""
    found = [Strategy.DP]
    if seen.blocks:
        found.append(Strategy.DP_RECOMPUTE)
    if devices.count == 1:
        return found
    hybrid = devices.nodes > 1 and devices.per_node > 1
    found.append(Strategy.HSDP if hybrid else Strategy.FSDP)
    if seen.blocks:
        found.append(Strategy.HSDP_RECOMPUTE if hybrid else Strategy.FSDP_RECOMPUTE)
    if hybrid:
        found.append(Strategy.FSDP)
        found += [Strategy.FSDP_RECOMPUTE] if seen.blocks else []
    if seen.blocks:
        found += [Strategy.TP] if devices.per_node > 1 else []
        found.append(Strategy.PP)
    return found


def need(seen: MemorySeen, devices: Devices, strategy: Strategy) -> Need:
    """The needs of each device if the program's batch is divided among them."""
    if strategy in (Strategy.DP, Strategy.DP_RECOMPUTE):
        return _replicated(seen, devices, strategy)
    if strategy is Strategy.TP:
        return _divided(seen, devices)
    if strategy is Strategy.PP:
        return _staged(seen, devices)
    return _sharded(seen, devices, strategy)


def choice(needs: Sequence[Need]) -> Need | None:
    """The first that fits, or None."""
    return next((item for item in needs if item.fits), None)


def _activations(seen: MemorySeen, rows: int, recomputed: bool) -> int:
    """The peak bytes of activations."""
    whole = at(seen, rows, lambda point: point.activations_bytes)
    if not recomputed:
        return whole
    saved = at(seen, rows, lambda point: point.saved_bytes)
    outputs = at(seen, rows, lambda point: point.outputs_bytes)
    again = at(seen, rows, lambda point: point.again_bytes)
    return min(whole, max(whole - saved + outputs, again))  # at the loss, or in a block after it


def _replicated(seen: MemorySeen, devices: Devices, strategy: Strategy) -> Need:
    rows = rows_per_device(seen, devices.count)
    weights = seen.parameters_bytes + seen.buffers_bytes
    held = weights + seen.state_bytes
    activations = _activations(seen, rows, strategy.recomputes)
    kept = at(seen, rows, lambda point: point.kept_bytes)
    if devices.count > 1:  # gradients are views of persistent buckets
        in_pass = activations + seen.gradients_bytes
    elif strategy.recomputes:
        outputs = at(seen, rows, lambda point: point.outputs_bytes)
        at_first = activations + max(point.gradients_then_bytes for point in seen.points)
        in_pass = max(at_first, activations - outputs + seen.gradients_bytes)
    else:
        in_pass = at(seen, rows, lambda point: point.peak_bytes)
    return Need(
        strategy,
        rows,
        parameters=weights,
        gradients=seen.gradients_bytes,
        state=seen.state_bytes,
        activations=activations,
        pass_peak=held + in_pass,
        update_peak=held + seen.gradients_bytes + kept + _update(seen),
        memory_bytes=devices.memory_bytes,
    )


def _sharded(seen: MemorySeen, devices: Devices, strategy: Strategy) -> Need:
    """FSDP2: a block's weights are gathered for it, together with those of the next one."""
    hybrid = strategy in (Strategy.HSDP, Strategy.HSDP_RECOMPUTE)
    shards = devices.per_node if hybrid else devices.count
    rows = rows_per_device(seen, devices.count)
    rest = seen.parameters_bytes - seen.blocks_bytes
    block = seen.largest_block_bytes
    parameters = seen.parameters_bytes / shards + seen.buffers_bytes
    gradients, state = seen.gradients_bytes / shards, seen.state_bytes / shards
    activations = _activations(seen, rows, strategy.recomputes)
    kept = at(seen, rows, lambda point: point.kept_bytes)
    trained = seen.gradients_bytes / max(1, seen.parameters_bytes)
    """Share of the parameters that get a gradient."""
    # While a block runs backward: its weights and the next one's, its gradients and their copy for
    # the exchange. At the end the same for weights in no block.
    gathered = rest + 2 * block
    first = activations + gathered + 2 * block * trained
    last = kept + gradients + rest * (1 + 2 * trained)
    return Need(
        strategy,
        rows,
        parameters=round(parameters + gathered),
        gradients=round(gradients),
        state=round(state),
        activations=activations,
        pass_peak=round(parameters + state + max(first, last)),
        update_peak=round(parameters + state + gradients + kept + _update(seen) / shards),
        memory_bytes=devices.memory_bytes,
    )


def _divided(seen: MemorySeen, devices: Devices) -> Need:
    """Tensor parallel within a node; weights in no block stay whole, and nodes shard the rest."""
    ways = devices.per_node
    rows = rows_per_device(seen, devices.nodes)
    part = _part(seen, ways) / devices.nodes
    activations = _activations(seen, rows, recomputed=False)
    saved = at(seen, rows, lambda point: point.saved_bytes)
    outputs = at(seen, rows, lambda point: point.outputs_bytes)
    inner = max(0, saved - 2 * outputs)
    """Between the two products of a pair; inputs, outputs and norms are on every device."""
    activations = round(activations - inner * (1 - 1 / ways))
    return _by_part(seen, devices, Strategy.TP, rows, part, activations)


def _staged(seen: MemorySeen, devices: Devices) -> Need:
    """A pipeline of all devices with as many micro-batches: 1F1B keeps those of one stage."""
    stages = min(devices.count, max(1, seen.blocks))
    copies = max(1, devices.count // stages)
    rows = rows_per_device(seen, copies)
    activations = round(_activations(seen, rows, recomputed=False) / stages)
    return _by_part(seen, devices, Strategy.PP, rows, _part(seen, stages), activations)


def _part(seen: MemorySeen, ways: int) -> float:
    """Share of the weights on each device if the blocks' are divided, but not the others."""
    rest = seen.parameters_bytes - seen.blocks_bytes
    return (rest + seen.blocks_bytes / ways) / max(1, seen.parameters_bytes)


def _by_part(
    seen: MemorySeen,
    devices: Devices,
    strategy: Strategy,
    rows: int,
    part: float,
    activations: int,
) -> Need:
    parameters = part * seen.parameters_bytes + seen.buffers_bytes
    gradients, state = part * seen.gradients_bytes, part * seen.state_bytes
    kept = at(seen, rows, lambda point: point.kept_bytes)
    held = parameters + state
    return Need(
        strategy,
        rows,
        parameters=round(parameters),
        gradients=round(gradients),
        state=round(state),
        activations=activations,
        pass_peak=round(held + max(activations, kept + gradients)),
        update_peak=round(held + gradients + kept + part * _update(seen)),
        memory_bytes=devices.memory_bytes,
    )


def _update(seen: MemorySeen) -> int:
    return max(point.update_bytes for point in seen.points)
