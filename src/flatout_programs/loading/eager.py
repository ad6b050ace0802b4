"""Run an exported program operator by operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Load the program; return the function that runs it."""
    import torch

    torch.set_num_threads(threads)
    exported: Any = torch.export.load(folder / "model.pt2")
    try:
        program = exported.module(check_guards=False)
    except TypeError:  # torch before 2.9 has no guards to leave out
        program = exported.module()

    def run(arrays: list[Any]) -> list[Any]:
        with torch.inference_mode():
            tensors = [torch.from_numpy(array) for array in arrays]
            return [output.numpy() for output in program(*tensors)]

    return run
