"""A package compiled ahead of time by AOTInductor.

## What it is

TorchInductor's kernels and the code that calls them as one shared library, without Python inside:
`model.pt2` in the package format of AOTInductor, with weights frozen, folded and laid out for the
kernels. It is loaded by Python, C++ or Triton's `torch_aoti` platform.

## When it wins

Models with much element-wise work between products, and calls so short that Python's own time
counts. On CPUs the frozen weights often win as much as the fusion.

## What it needs

A C++ compiler for the build, none for serving. The package runs on the kind of CPU or GPU that it
was built for, and on the torch that it was built with.

## What it may change

Fused kernels take sums in another order. The `bf16` variant rounds as autocast does.

## By hand

```python
shapes = ({0: torch.export.Dim.DYNAMIC},)
program = torch.export.export(model.eval(), (batch,), dynamic_shapes=shapes)
torch._inductor.aoti_compile_and_package(program, package_path="model.pt2")
runner = torch._inductor.aoti_load_package("model.pt2")
output = runner(batch)
```

## References

- https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

BACKEND = ExportBackend(
    variants=(
        Variant("", "exact", "AOTInductor"),
        Variant("bf16", "rounding", "AOTInductor, bfloat16"),
    ),
    rank=2,
)


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Compile and package."""
    import torch
    import torch._inductor

    torch.set_num_threads(settings["threads"])
    program = captured.autocast_program() if variant == "bf16" else captured.program()
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / "model.pt2"), inductor_configs={"freezing": True}
        )
    return {"isa": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}
