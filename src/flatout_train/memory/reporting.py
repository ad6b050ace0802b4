"""The use of a device's memory by category, as a table."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from flatout_train.memory import counters as memory_counters
from flatout_train.sizes import size


@dataclass(frozen=True)
class Report:
    """A device's memory at one moment, in bytes; None if unknown for this device type.

    `categories` maps "parameters", "gradients", "optimizer state", "buffers" and, for a step with
    an average, "averaged weights" to bytes; "other" is the rest of `allocated`: activations,
    batches, workspaces, on the CPU also Python and its libraries. It is empty if neither model,
    optimizer nor step was passed.
    """

    device: torch.device
    name: str
    allocated: int | None
    """In use by tensors; on the CPU: resident memory of this process."""
    reserved: int | None
    """Reserved from the device by torch's allocator."""
    peak: int | None
    """Peak of `allocated` so far."""
    free: int | None
    """Free on the device; on the CPU: in the container or the machine."""
    total: int | None
    """On MPS: Metal's recommended maximum."""
    fragmentation: float | None
    """Share of `reserved` that is free but in split blocks, 0 to 1."""
    categories: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [("allocated", size(self.allocated), "")]
        for category, count in self.categories.items():
            share = f"{count / self.allocated:.0%}" if self.allocated else ""
            rows.append((f"  {category}", size(count), share))
        rows += [
            ("reserved", size(self.reserved), ""),
            ("peak", size(self.peak), ""),
            ("free", size(self.free), f"of {size(self.total)}"),
        ]
        if self.fragmentation is not None:
            rows.append(("fragmentation", f"{self.fragmentation:.0%}", "of reserved"))
        lines = [f"{label:<22}{value:>12}  {note}".rstrip() for label, value, note in rows]
        return "\n".join([f"Memory of {self.name}"[:80], *lines])


def make(
    device: torch.device,
    model: nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    average: nn.Module | None,
) -> Report:
    """The report of `device`, by category as far as model, optimizer and average are known."""
    counters = memory_counters.read(device)
    fragmentation = None
    if counters.split is not None and counters.reserved:
        fragmentation = counters.split / counters.reserved
    return Report(
        device,
        memory_counters.name(device),
        counters.allocated,
        counters.reserved,
        counters.peak,
        counters.free,
        counters.total,
        fragmentation,
        _categories(device, counters.allocated, model, optimizer, average),
    )


def held_by_tensors(device: torch.device) -> int:
    """Bytes of all tensors on `device` that Python can see."""
    return _bytes(live_tensors(), device, set())


def live_tensors() -> list[Tensor]:
    """All tensors that Python can see, except the compiler's fake tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some lazy objects warn when they are inspected
        return [
            value
            for value in gc.get_objects()
            if issubclass(type(value), Tensor)
            and not type(value).__module__.startswith("torch._subclasses")
        ]


def _categories(
    device: torch.device,
    allocated: int | None,
    model: nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    average: nn.Module | None,
) -> dict[str, int]:
    if model is None and optimizer is None and average is None:
        return {}
    parameters = list(model.parameters()) if model is not None else []
    for group in optimizer.param_groups if optimizer is not None else ():
        parameters += group["params"]
    state = optimizer.state.values() if optimizer is not None else ()
    counted: set[int] = set()
    categories = {
        "parameters": _bytes(parameters, device, counted),
        "gradients": _bytes((p.grad for p in parameters if p.grad is not None), device, counted),
        "optimizer state": _bytes(_tensors(state), device, counted),
        "buffers": _bytes(model.buffers() if model is not None else (), device, counted),
    }
    if average is not None:
        held = (*average.parameters(), *average.buffers())
        categories["averaged weights"] = _bytes(held, device, counted)
    if allocated is not None and allocated >= sum(categories.values()):
        categories["other"] = allocated - sum(categories.values())
    return categories


def _tensors(states: Iterable[Any]) -> Iterator[Tensor]:
    for state in states:
        values = state.values() if isinstance(state, dict) else ()
        yield from (value for value in values if isinstance(value, Tensor))


def _bytes(tensors: Iterable[Tensor], device: torch.device, counted: set[int]) -> int:
    """Bytes of storages on `device` that are not in `counted`; adds them: each counts once."""
    total = 0
    for tensor in tensors:
        if not _on(tensor, device) or tensor.layout is not torch.strided:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _on(tensor: Tensor, device: torch.device) -> bool:
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)
