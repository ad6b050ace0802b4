"""What `flatout memory` prints: the memory of a step, part by part, and where it fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout.nouns import units
from flatout.nouns.memory_fit import MemoryFit
from flatout.reporting import plain
from flatout.reporting.paragraphs import Line, paragraph, show, styled, width_of

if TYPE_CHECKING:
    from rich.console import Console

MEMORY = "flatout.memory/1"
PART, SIZE = 22, 12
"""Column widths of the parts."""
STRATEGY, ROWS, COLUMN = 14, 8, 10
"""Column widths of the strategies."""
MEANINGS = {
    "dp": "each device has the whole model and its part of the batch",
    "fsdp": "weights, gradients and optimizer state are sharded over all devices",
    "hsdp": "sharded within each node, the same in every node",
    "tp": "the matrix products of each block are divided within a node",
    "pp": "each device has some of the blocks, and micro-batches pass through them",
}
RECOMPUTE = ", and activations are computed a second time instead of being kept"
BY_HAND = {
    "fsdp": "torch.distributed.fsdp.fully_shard(...) of each block, then of the model",
    "hsdp": "fully_shard(..., mesh=...) of each block, then of the model, over nodes x GPUs",
    "tp": "torch.distributed.tensor.parallel.parallelize_module(block, mesh, plan) of each block",
    "pp": "torch.distributed.pipelining: a PipelineStage on each device, and Schedule1F1B",
    "recompute": "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for each block",
}
"""What torch has for each strategy that needs an edit."""
COLUMNS = ("weights", "gradients", "state", "activ.", "peak")


def document(fit: MemoryFit) -> dict[str, Any]:
    """What `flatout memory --json` prints."""
    return {"schema": MEMORY, "fits": fit.chosen is not None, **dataclasses.asdict(fit)}


def show_fit(fit: MemoryFit, console: Console | None = None) -> None:
    """Print everything; on stdout unless another console is given."""
    from rich.console import Console

    console = console or Console()
    for line in _lines(fit, width_of(console)):
        show(console, line)


def _lines(fit: MemoryFit, width: int) -> Iterator[Line]:
    name = plain.one_line(f"{fit.model} with {fit.optimizer}")
    yield from paragraph("model", name, width, "bold")
    rows = " and ".join(f"{rows:,}" for rows in fit.measured_rows)
    where = plain.one_line(fit.measured_on)
    step = f"measured on {where} with batches of {rows}; the script's has {fit.batch_rows:,}"
    yield from paragraph("step", step, width, "bold")
    fixed, row = max(0, fit.activations_fixed_bytes), fit.activations_row_bytes
    parts = [
        ("parameters", fit.parameters_bytes, ""),
        *([("buffers", fit.buffers_bytes, "")] if fit.buffers_bytes else []),
        ("gradients", fit.gradients_bytes, ""),
        ("optimizer state", fit.state_bytes, ""),
        (
            "activations",
            fit.activations_bytes,
            f"{units.size(fixed)} + {units.size(row)} for each sample",
        ),
        ("optimizer's step", fit.update_bytes, "for itself, while it steps"),
        ("peak", fit.peak_bytes, "with the whole batch on one device"),
    ]
    for label, size, remark in parts:
        text = f"          {label:<{PART}}{units.size(size):>{SIZE}}  {remark}"
        yield Line(plain.cut(text.rstrip(), width))
    yield Line("")
    devices = f"{fit.devices} of {units.size(fit.memory_bytes)}"
    if fit.devices > 1:
        nodes = f" in {fit.nodes} nodes" if fit.nodes > 1 else ""
        devices += f"{nodes}; the batch is divided among them"
    yield from paragraph("devices", devices, width, "bold")
    head = f"  {'':{STRATEGY}}{'samples':>{ROWS}}"
    yield styled(head + "".join(f"{column:>{COLUMN}}" for column in COLUMNS), "dim")
    for item in fit.strategies:
        cells = (
            item.parameters_bytes,
            item.gradients_bytes,
            item.state_bytes,
            item.activations_bytes,
            item.peak_bytes,
        )
        text = f"  {item.strategy:<{STRATEGY}}{item.rows:>{ROWS},}"
        text += "".join(f"{units.size(size):>{COLUMN}}" for size in cells)
        text += "  fits" if item.fits else "  no"
        fitting = "" if item.fits else "dim"
        yield styled(text, "bold green" if item.strategy == fit.chosen else fitting)
    yield Line("")
    for note in fit.notes:
        yield from paragraph("note", note, width, "bold")
    yield from _verdict(fit, width)


def _verdict(fit: MemoryFit, width: int) -> Iterator[Line]:
    chosen = next((item for item in fit.strategies if item.strategy == fit.chosen), None)
    if chosen is None:
        least = min(fit.strategies, key=lambda item: item.peak_bytes + item.margin_bytes)
        needed = units.size(least.peak_bytes + least.margin_bytes)
        text = f"no strategy fits; the least is {least.strategy}, {needed} on each device"
        yield from paragraph("verdict", text, width, "bold red")
        yield from paragraph("next", "smaller batches, more devices, or both", width, "bold cyan")
        return
    kind = chosen.strategy.partition("+")[0]
    meaning = MEANINGS[kind] + (RECOMPUTE if "+" in chosen.strategy else "")
    if fit.devices == 1:
        meaning = "as it is" + (RECOMPUTE if "+" in chosen.strategy else "")
    needed = f"{units.size(chosen.peak_bytes)} and a margin of {units.size(chosen.margin_bytes)}"
    text = f"fits with {chosen.strategy}: {meaning}; {needed} of {units.size(fit.memory_bytes)}"
    yield from paragraph("verdict", text, width, "bold green")
    for part in chosen.strategy.split("+"):
        if part in BY_HAND:
            yield from paragraph("next", BY_HAND[part], width, "bold cyan")
