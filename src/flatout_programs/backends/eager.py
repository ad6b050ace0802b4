"""Eager PyTorch, as the script runs the model.

## What it is

The captured model in float32, operator by operator, without gradients. Every other backend is
compared with it, in results and in time.

## When it wins

If the model is so large that its products take all the time and no other backend has faster
kernels, or so small that nothing is left to fuse.

## What it needs

torch. The artefact is an exported program (`model.pt2`) that needs nothing of the script.

## What it may change

Nothing.

## By hand

```python
program = torch.export.load("model.pt2").module()
with torch.inference_mode():
    output = program(batch)
```

## References

- https://docs.pytorch.org/docs/stable/export.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

BACKEND = ExportBackend(variants=(Variant("", "exact", "eager"),), rank=0)


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Copy the exported program."""
    captured.copy_program(folder / "model.pt2")
    return {}
