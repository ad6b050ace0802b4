"""Run an engine of TensorRT; torch holds its memory on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Load the engine; return the function that runs it."""
    import numpy
    import tensorrt
    import torch

    runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine((folder / "model.plan").read_bytes())
    if engine is None:
        raise RuntimeError("this engine was built for another GPU or TensorRT: export it here")
    context, stream = engine.create_execution_context(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    kinds = {
        name: torch.from_numpy(numpy.zeros(0, tensorrt.nptype(kind))).dtype
        for name in options["outputs"]
        for kind in [engine.get_tensor_dtype(name)]
    }

    def run(arrays: list[Any]) -> list[Any]:
        with torch.cuda.stream(stream):
            held = [torch.from_numpy(array).cuda() for array in arrays]
            for name, tensor in zip(options["inputs"], held):
                context.set_input_shape(name, tuple(tensor.shape))
                context.set_tensor_address(name, tensor.data_ptr())
            outputs = [
                torch.empty(tuple(context.get_tensor_shape(name)), dtype=kinds[name], device="cuda")
                for name in options["outputs"]
            ]
            for name, tensor in zip(options["outputs"], outputs):
                context.set_tensor_address(name, tensor.data_ptr())
            if not context.execute_async_v3(stream.cuda_stream):
                raise RuntimeError("TensorRT did not run the call")
            stream.synchronize()
            return [tensor.cpu().numpy() for tensor in outputs]

    return run
