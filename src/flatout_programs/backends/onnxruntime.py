"""ONNX Runtime.

## What it is

The model as ONNX, written by torch's own exporter from the exported program, and run by ONNX
Runtime with all of its graph optimisations: constant folding, fused convolutions and attention,
layouts of its own. The `int8` variant quantises weights and activations (static, QDQ, per channel).

## When it wins

Small and middle-sized models on CPUs, where its calls cost little, and transformers. The artefact
needs no torch: 80 MB of packages instead of 1 GB.

## What it needs

`onnx` and `onnxscript` for the build; `onnxruntime` and numpy for serving. On NVIDIA GPUs
`onnxruntime-gpu`.

## What it may change

Sums are taken in another order. `int8` rounds weights and activations to 256 levels, which are
found on samples that the guard does not see.

## By hand

```python
torch.onnx.export(program, dynamo=True).save("model.onnx")
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
output = session.run(None, {"x": batch.numpy()})
```

## References

- https://docs.pytorch.org/docs/stable/onnx_export.html
- https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, RuntimePackage, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

BACKEND = ExportBackend(
    variants=(
        Variant("", "exact", "ONNX Runtime"),
        Variant("int8", "quantised", "ONNX Runtime, int8"),
    ),
    rank=4,
    building=(RuntimePackage("onnx", "onnx", 33), RuntimePackage("onnxscript", "onnxscript", 10)),
    serving=(RuntimePackage("onnxruntime", "onnxruntime", 78),),
    torch_free=True,
)


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Export; for int8 calibrate and quantise."""
    import torch

    exported = torch.onnx.export(
        captured.program(),
        dynamo=True,
        verbose=False,
        input_names=captured.input_names,
        output_names=captured.output_names,
    )
    assert exported is not None
    if variant != "int8":
        exported.save(str(folder / "model.onnx"))
    else:
        _quantised(exported, captured, folder)
    names = [item.name for item in exported.model.graph.inputs]
    return {"inputs": names, "outputs": [item.name for item in exported.model.graph.outputs]}


def _quantised(exported: Any, captured: Captured, folder: Path) -> None:
    import tempfile
    from pathlib import Path as Folder

    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [item.name for item in exported.model.graph.inputs]
    calls = iter([dict(zip(names, call)) for call in captured.calibration_calls()])

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return next(calls, None)

    with tempfile.TemporaryDirectory() as scratch:
        plain, prepared = Folder(scratch, "plain.onnx"), Folder(scratch, "prepared.onnx")
        exported.save(str(plain))
        quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared),
            str(folder / "model.onnx"),
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
