"""Run a model with OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Compile the model for this CPU; return the function that runs it.

    options: `single` has the batch axis of each input if batch 1 gets a separate model with fixed
    shapes.
    """
    import openvino

    core = openvino.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": options["precision"],
        "PERFORMANCE_HINT": options["hint"],
        "INFERENCE_NUM_THREADS": threads,
    }

    def request(batch: Any) -> Any:
        model = core.read_model(str(folder / "model.xml"))
        if batch is not None:
            shapes = {}
            for place, axis in enumerate(options["single"]):
                shape = model.inputs[place].get_partial_shape()
                if axis is not None:
                    shape[axis] = batch
                shapes[place] = shape
            model.reshape(shapes)
        return core.compile_model(model, "CPU", settings).create_infer_request()

    any_batch = request(None)
    single = request(1) if options["single"] is not None else any_batch
    axes = options["single"] or []
    count = len(any_batch.model_outputs)

    def run(arrays: list[Any]) -> list[Any]:
        alone = all(axis is None or item.shape[axis] == 1 for item, axis in zip(arrays, axes))
        # The request fills the same outputs at each call: the caller gets copies.
        answer = (single if alone else any_batch).infer(arrays, share_inputs=True)
        return [answer[place].copy() for place in range(count)]

    return run
