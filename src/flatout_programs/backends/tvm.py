"""TVM.

## What it is

The exported program as Relax, TVM's own graphs, compiled by LLVM for this CPU to a shared library.
Without tuning every operator gets a plain loop nest, often much slower than a library's kernel. The
`tuned` variant lets MetaSchedule search for schedules of batch 1 in the time that `--tune` gives
it; other batch sizes keep the untuned code.

## When it wins

Rarely without tuning. With some thousand trials: small models of unusual operators, and CPUs for
which no library has good kernels.

## What it needs

`apache-tvm` 0.20 or newer, and a C++ compiler for the build. The artefact needs apache-tvm and
numpy, no torch, and the kind of CPU that it was built on. `relay.frontend.from_onnx`, which most
recipes name, is gone since 0.20, and so is the function that `torch.compile(backend="tvm")` calls.
With apache-tvm 0.27.0.post1 and apache-tvm-ffi 0.1.15.post2 the search crashed wherever it was
tried. With apache-tvm-ffi 0.1.14, which is withdrawn from PyPI, it was not seen to end either.

## What it may change

Sums are taken in another order.

## By hand

```python
module = tvm.relax.frontend.torch.from_exported_program(program, run_ep_decomposition=True)
library = tvm.compile(module, target=tvm.target.Target({"kind": "llvm", "mcpu": "native"}))
machine = tvm.relax.VirtualMachine(library, tvm.cpu())
output = machine["main"](tvm.runtime.tensor(batch.numpy()))[0].numpy()
```

## References

- https://tvm.apache.org/docs/how_to/tutorials/import_model.html
- https://tvm.apache.org/docs/deep_dive/tensor_ir/tutorials/meta_schedule.html
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, RuntimePackage, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

TVM = RuntimePackage("apache-tvm", "tvm", 320)
XGBOOST = RuntimePackage("xgboost", "xgboost", 330)
BACKEND = ExportBackend(
    variants=(
        Variant("", "exact", "TVM, untuned"),
        Variant("tuned", "exact", "TVM, tuned", (XGBOOST,), searches=True),
    ),
    rank=6,
    building=(TVM,),
    serving=(TVM,),
    torch_free=True,
)
TRIALS = 64
"""Trials of one round of the search; rounds go on until the time is over."""
ROUND_SHARE = 0.5
"""A round is begun if at least this part of the longest one so far is left."""


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Compile the program; `tuned` also for batch 1 alone, with the result of the search."""
    import tvm
    from tvm.relax.frontend.torch import from_exported_program

    module = from_exported_program(captured.program(), run_ep_decomposition=True)
    target = _target(settings["threads"])
    tvm.compile(module, target=target).export_library(str(folder / "model.so"))
    if variant == "tuned":
        _single(captured, module, target, folder, settings["tune_s"])
    return {"cpu": _cpu(), "batch_axis": _first_axis(captured)}


def _single(captured: Captured, module: Any, target: Any, folder: Path, seconds: float) -> None:
    """Search for schedules of batch 1, and compile with them."""
    import tempfile

    import tvm
    from tvm import relax
    from tvm.relax.pipeline import static_shape_tuning_pipeline

    names = _symbols(module)
    fixed = relax.transform.BindSymbolicVars(dict.fromkeys(names, 1))(module)
    with tempfile.TemporaryDirectory() as work:
        began, longest = time.monotonic(), 0.0
        while time.monotonic() - began + ROUND_SHARE * longest < seconds:
            round_began = time.monotonic()
            static_shape_tuning_pipeline(TRIALS, target, work, max_trials_per_task=TRIALS)(fixed)
            longest = max(longest, time.monotonic() - round_began)
        tuned = static_shape_tuning_pipeline(0, target, work)(fixed)
        tvm.compile(tuned, target=target).export_library(str(folder / "single.so"))


def _symbols(module: Any) -> list[str]:
    """Names of the free dimensions of the inputs. Raises RuntimeError if one is no batch."""
    from tvm import tirx

    free = {
        dimension.name
        for param in module["main"].params
        for dimension in param.ty.shape
        if isinstance(dimension, tirx.Var)
    }
    if len(free) > 1:
        raise RuntimeError("it is tuned for fixed shapes, and more than the batch is free")
    return sorted(free)


def _target(threads: int) -> Any:
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": _cpu(), "num-cores": threads})


def _cpu() -> str:
    from tvm.target import codegen

    return str(codegen.llvm_get_system_cpu())


def _first_axis(captured: Captured) -> list[Any]:
    """(place of an input, its batch axis), to see how large the batch of a call is."""
    axes = captured.prepared["input_axes"]
    return next(([at, axis] for at, axis in enumerate(axes) if axis is not None), [0, 0])
