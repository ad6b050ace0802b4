"""OpenVINO.

## What it is

The exported program converted by OpenVINO, which picks kernels and layouts for the CPU (oneDNN,
AMX) or for Intel's GPUs. The precision is always set explicitly: left alone, OpenVINO computes in
bfloat16 wherever the CPU can. Weights are saved in float32 (it halves them by default). `bf16`
allows bfloat16 inside; `int8` is quantised by NNCF.

## When it wins

Convolutions and transformers on Intel CPUs, above all with bfloat16 or int8 on AMX.

## What it needs

`openvino`; for `int8` also `nncf`. The artefact needs openvino and numpy, no torch.

## What it may change

Sums are taken in another order. `bf16` rounds weights and activations to 8 bits of mantissa;
`int8` to 256 levels, which are found on samples that the guard does not see.

## By hand

```python
model = openvino.convert_model(program)
openvino.save_model(model, "model.xml", compress_to_fp16=False)
compiled = openvino.Core().compile_model("model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
output = compiled([batch.numpy()])[0]
```

## References

- https://docs.openvino.ai/2026/openvino-workflow/model-preparation/convert-model-pytorch.html
- https://docs.openvino.ai/2026/openvino-workflow/model-optimization.html
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, RuntimePackage, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

NNCF = RuntimePackage("nncf", "nncf", 60)
ROUNDS = 5
ROUND_S = 0.06
CLEARLY = 1.03
"""A later combination must be this much faster than the best before it."""
BACKEND = ExportBackend(
    variants=(
        Variant("", "exact", "OpenVINO"),
        Variant("bf16", "rounding", "OpenVINO, bfloat16"),
        Variant("int8", "quantised", "OpenVINO, int8", (NNCF,)),
    ),
    rank=5,
    building=(RuntimePackage("openvino", "openvino", 180),),
    serving=(RuntimePackage("openvino", "openvino", 180),),
    torch_free=True,
)


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Convert; for int8 quantise."""
    import openvino

    model = openvino.convert_model(captured.program())
    if variant == "int8":
        import nncf

        calls = captured.calibration_calls()
        nncf.set_log_level(40)  # only errors: the table shows the user its result
        dataset = nncf.Dataset(calls, list)
        model = nncf.quantize(model, dataset, subset_size=len(calls))
    ports = [*model.inputs, *model.outputs]
    for port, name in zip(ports, [*captured.input_names, *captured.output_names]):
        port.get_tensor().set_names({name})  # as in the manifest, for use elsewhere
    openvino.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)
    precision = "bf16" if variant == "bf16" else "f32"
    # Settings worth trying: both hints, and a second model for batch 1 with fixed shapes.
    axes = captured.prepared["input_axes"]
    singles = (
        [None, axes] if captured.batch_dynamic and any(a is not None for a in axes) else [None]
    )
    combinations = [
        {"precision": precision, "hint": hint, "single": single}
        for single in singles
        for hint in ("LATENCY", "THROUGHPUT")
    ]
    return _fastest(captured, folder, combinations, settings["threads"])


def _fastest(
    captured: Captured, folder: Path, combinations: list[dict[str, Any]], threads: int
) -> dict[str, Any]:
    """The combination with the lowest median time of a single call.

    Combinations that fail are left out; raises the last error if all fail. Of nearly equal ones the
    first is taken.
    """
    from flatout_programs.loading import openvino as loading

    call = captured.single_calls()[0]
    best, best_ms, error = None, 0.0, None
    for options in combinations:
        try:
            run = loading.start(folder, options, threads)
            run(call)
            times = []
            for _ in range(ROUNDS):
                began, calls = time.perf_counter(), 0
                while calls == 0 or time.perf_counter() - began < ROUND_S:
                    run(call)
                    calls += 1
                times.append((time.perf_counter() - began) / calls * 1e3)
            ms = statistics.median(times)
        except Exception as problem:
            error = problem
            continue
        if best is None or ms * CLEARLY < best_ms:
            best, best_ms = options, ms
    if best is None:
        assert error is not None
        raise error
    return best
