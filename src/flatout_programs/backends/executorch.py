"""ExecuTorch, for phones and other devices.

## What it is

The exported program as a `.pte` file for ExecuTorch's small runtime, with every operator that
XNNPACK knows handed over to it. Tried only if named: `--only executorch`.

## When it wins

On devices: the runtime is a few megabytes without Python. On servers the others are faster.

## What it needs

`executorch` for the build and for the check; on the device its C++ or mobile runtime. The batch
must have an upper bound: it is the largest that the script used.

## What it may change

Sums are taken in another order.

## By hand

```python
lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
open("model.pte", "wb").write(lowered.to_executorch().buffer)
output = Runtime.get().load_program("model.pte").load_method("forward").execute([batch])
```

## References

- https://docs.pytorch.org/executorch/stable/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, RuntimePackage, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

EXECUTORCH = RuntimePackage("executorch", "executorch", 350)
BACKEND = ExportBackend(
    variants=(Variant("", "exact", "ExecuTorch"),),
    rank=8,
    building=(EXECUTORCH,),
    serving=(EXECUTORCH,),
    on_demand=True,
)


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Export with a bounded batch, lower to XNNPACK, write the file."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    module = captured.module()
    sample = captured.tensors(captured.typical_calls()[0])
    with torch.no_grad():
        program = torch.export.export(module, sample, dynamic_shapes=_bounded(captured))
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    (folder / "model.pte").write_bytes(lowered.to_executorch().buffer)
    return {}


def _bounded(captured: Captured) -> tuple[Any, ...]:
    """Free dimensions, bounded by the largest observed size."""
    import torch

    sizes = captured.typical_calls()[0]
    batch = torch.export.Dim("batch", min=1, max=max(2, max(captured.prepared["batch_sizes"])))
    axes = captured.prepared["input_axes"]
    return tuple(
        {
            at: batch if at == axes[place] else torch.export.Dim.AUTO
            for at, size in enumerate(item["shape"])
            if size is None
        }
        for place, (item, _) in enumerate(zip(captured.facts["inputs"], sizes))
    )
