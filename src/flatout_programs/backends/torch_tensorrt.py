"""Torch-TensorRT.

## What it is

The exported program with every operator that TensorRT knows compiled to engines, and the rest left
to PyTorch, for models with operators that TensorRT alone refuses.

Not verified on a GPU by flatout's own tests yet; its results are guarded like those of the others.

## When it wins

On NVIDIA GPUs, if the model has operators that a TensorRT engine alone cannot hold.

## What it needs

An NVIDIA GPU and the `torch-tensorrt` that belongs to the torch installed (2.13 to 2.13).

## What it may change

Sums are taken in another order; `fp16` rounds to 11 bits of mantissa.

## By hand

```python
compiled = torch_tensorrt.dynamo.compile(program, inputs=[batch], use_explicit_typing=False)
torch_tensorrt.save(compiled, "model.ep", inputs=[batch])
```

## References

- https://docs.pytorch.org/TensorRT/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, RuntimePackage, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

TORCH_TENSORRT = RuntimePackage("torch-tensorrt", "torch_tensorrt", 4100)
BACKEND = ExportBackend(
    variants=(
        Variant("", "exact", "Torch-TensorRT"),
        Variant("fp16", "rounding", "Torch-TensorRT, float16"),
    ),
    rank=10,
    building=(TORCH_TENSORRT,),
    serving=(TORCH_TENSORRT,),
    device="cuda",
)
MOST_BATCH = 256


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Compile on the GPU and save."""
    import torch
    import torch_tensorrt
    from torch.export.passes import move_to_device_pass

    program = move_to_device_pass(captured.program(), "cuda")
    sample = [item.cuda() for item in captured.tensors(captured.typical_calls()[0])]
    precisions = {torch.float32} | ({torch.float16} if variant == "fp16" else set())
    compiled = torch_tensorrt.dynamo.compile(
        program,
        inputs=[_input(captured, at, item, torch_tensorrt) for at, item in enumerate(sample)],
        enabled_precisions=precisions,
        use_explicit_typing=False,
        disable_tf32=True,
    )
    torch_tensorrt.save(
        compiled,
        str(folder / "model.ep"),
        arg_inputs=sample,
        dynamic_shapes=captured.dynamic_shapes() if captured.batch_dynamic else None,
    )
    return {}


def _input(captured: Captured, at: int, sample: Any, torch_tensorrt: Any) -> Any:
    axis = captured.prepared["input_axes"][at]
    shape = list(sample.shape)
    if not captured.batch_dynamic or axis is None:
        return torch_tensorrt.Input(shape=shape, dtype=sample.dtype)
    least, most = list(shape), list(shape)
    least[axis], most[axis] = 1, max(MOST_BATCH, shape[axis])
    return torch_tensorrt.Input(
        min_shape=least, opt_shape=shape, max_shape=most, dtype=sample.dtype
    )
