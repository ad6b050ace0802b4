"""Run a model with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Make a session; return the function that runs it."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.log_severity_level = 3
    providers = [options["provider"]] if "provider" in options else []
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), settings, providers=[*providers, "CPUExecutionProvider"]
    )
    names = options["inputs"]
    known = {item.name for item in session.get_inputs()}

    def run(arrays: list[Any]) -> list[Any]:
        # An input that the outputs do not depend on may be gone from the graph.
        given = {name: array for name, array in zip(names, arrays) if name in known}
        return list(session.run(options["outputs"], given))

    return run
