"""Run a program that Torch-TensorRT compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Load the program; return the function that runs it."""
    import torch
    import torch_tensorrt  # noqa: F401 - registers its engines

    torch.set_num_threads(threads)
    program = torch.export.load(folder / "model.ep").module()

    def run(arrays: list[Any]) -> list[Any]:
        with torch.inference_mode():
            outputs = program(*[torch.from_numpy(array).cuda() for array in arrays])
            return [output.cpu().numpy() for output in outputs]

    return run
