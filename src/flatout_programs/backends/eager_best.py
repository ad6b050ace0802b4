"""Eager PyTorch with the settings that are fastest here.

## What it is

The same program with convolutions' weights and inputs in channels-last, and in the `bf16` variant
with products rounded to bfloat16, inside the kernels (oneDNN) or by autocast. The build times each
combination on the model's real inputs and keeps the fastest.

## When it wins

Convolutions on CPUs with AVX-512 or AMX and on GPUs with Tensor Cores. It is kept before compiled
backends of equal speed, because nothing is compiled.

## What it needs

torch. bfloat16 pays on CPUs that have instructions for it (avx512_bf16, AMX, SVE bf16) and GPUs.

## What it may change

Channels-last takes sums in another order. The `bf16` variant rounds factors of products to 8 bits
of mantissa; sums stay in float32.

## By hand

```python
program = torch.export.load("model.pt2").module().to(memory_format=torch.channels_last)
with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
    output = program(images.to(memory_format=torch.channels_last))
```

## References

- https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
- https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

BACKEND = ExportBackend(
    variants=(
        Variant("", "exact", "eager, best settings"),
        Variant("bf16", "rounding", "eager, bfloat16"),
    ),
    rank=1,
)
ROUNDINGS = {"": ("",), "bf16": ("kernels", "autocast")}
"""Variant -> the place where products are rounded; see `loading/eager_best.py`."""


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Try every combination of settings on real inputs; the fastest is the artefact's."""
    from flatout_programs.exporting import trying
    from flatout_programs.loading import eager_best as loading

    captured.copy_program(folder / "model.pt2")
    layouts = (False, True) if captured.has("convolution", "conv2d") else (False,)
    combinations = [
        {"channels_last": layout, "rounding": rounding}
        for layout in layouts
        for rounding in ROUNDINGS[variant]
    ]
    found = trying.fastest(captured, folder, loading, combinations, settings["threads"])
    plain = {"channels_last": False, "rounding": ""}
    if variant and not trying.changes(
        captured, folder, loading, [found, plain], settings["threads"]
    ):
        raise RuntimeError(
            "bfloat16 changes nothing: the model has no products that it would round"
        )
    return found
