"""TensorRT.

## What it is

The model as ONNX, built by TensorRT to an engine for this NVIDIA GPU: fused kernels, chosen by
timing them. TF32 is off in the exact variant; `fp16` allows half precision inside.

Not verified on a GPU by flatout's own tests yet; its results are guarded like those of the others.

## When it wins

Convolutions and transformers on NVIDIA GPUs, above all in half precision.

## What it needs

An NVIDIA GPU, `tensorrt`, and `onnx` and `onnxscript` for the build. The engine runs on the kind of
GPU and the version of TensorRT that it was built with.

## What it may change

Sums are taken in another order; `fp16` rounds to 11 bits of mantissa.

## By hand

```sh
trtexec --onnx=model.onnx --saveEngine=model.engine --fp16
```

## References

- https://docs.nvidia.com/deeplearning/tensorrt/latest/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, RuntimePackage, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

TENSORRT = RuntimePackage("tensorrt", "tensorrt", 4000)
BACKEND = ExportBackend(
    variants=(
        Variant("", "exact", "TensorRT"),
        Variant("fp16", "rounding", "TensorRT, float16"),
    ),
    rank=9,
    building=(
        RuntimePackage("onnx", "onnx", 33),
        RuntimePackage("onnxscript", "onnxscript", 10),
        TENSORRT,
    ),
    serving=(TENSORRT,),
    device="cuda",
)
MOST_BATCH = 256


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Export to ONNX and build the engine."""
    import tempfile
    from pathlib import Path as Folder

    import tensorrt
    import torch

    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    network = builder.create_network(0)
    parser = tensorrt.OnnxParser(network, logger)
    exported: Any = torch.onnx.export(captured.program(), dynamo=True, verbose=False)
    with tempfile.TemporaryDirectory() as scratch:
        path = str(Folder(scratch, "model.onnx"))
        exported.save(path)
        if not parser.parse_from_file(path):
            raise RuntimeError(str(parser.get_error(0)))
    config = builder.create_builder_config()
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    if variant == "fp16":
        config.set_flag(tensorrt.BuilderFlag.FP16)
    _profile(captured, builder, network, config)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError("TensorRT could not build an engine for this model")
    (folder / "model.plan").write_bytes(bytes(engine))
    inputs = [network.get_input(at).name for at in range(network.num_inputs)]
    return {
        "inputs": inputs,
        "outputs": [network.get_output(at).name for at in range(network.num_outputs)],
    }


def _profile(captured: Captured, builder: Any, network: Any, config: Any) -> None:
    """Smallest, usual and largest shapes of each input."""
    profile, sample = builder.create_optimization_profile(), captured.typical_calls()[0]
    free = False
    for at, axis in enumerate(captured.prepared["input_axes"]):
        shape = list(sample[at].shape)
        least, usual, most = list(shape), list(shape), list(shape)
        if captured.batch_dynamic and axis is not None:
            least[axis], usual[axis], most[axis] = 1, 1, max(MOST_BATCH, shape[axis])
            free = True
        profile.set_shape(network.get_input(at).name, tuple(least), tuple(usual), tuple(most))
    if free:
        config.add_optimization_profile(profile)
