"""torch.compile when the model is loaded.

## What it is

The exported program compiled by TorchInductor in the serving process, with weights frozen. The code
compiled during the build is in the artefact, so a process on the same kind of machine finds it
ready.

## When it wins

If fused kernels are faster than eager ones and the package of AOTInductor cannot be built.

## What it needs

torch, and a C++ compiler (CPU) or Triton (GPU) where it is served: without the files of the build,
or with another torch, the first calls compile.

## What it may change

Fused kernels take sums in another order. The `bf16` variant rounds as autocast does.

## By hand

```python
program = torch.export.load("model.pt2").module()
with torch._inductor.config.patch(freezing=True), torch.no_grad():
    program = torch.compile(program)
    output = program(batch)
```

## References

- https://docs.pytorch.org/docs/stable/torch.compiler.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

BACKEND = ExportBackend(
    variants=(
        Variant("", "exact", "torch.compile"),
        Variant("bf16", "rounding", "torch.compile, bfloat16"),
    ),
    rank=3,
)


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Compile once, and keep the compiler's caches."""
    import torch

    from flatout_programs.loading import compile as loading

    captured.copy_program(folder / "model.pt2")
    options = {"bf16": variant == "bf16", "dynamic": captured.batch_dynamic}
    run = loading.start(folder, options, settings["threads"])
    # The second size makes the batch dynamic if it was not so from the start.
    for call in captured.typical_calls():
        run(call)
    saved = torch.compiler.save_cache_artifacts()
    if saved is not None:
        (folder / "compiled.bin").write_bytes(saved[0])
    return options
