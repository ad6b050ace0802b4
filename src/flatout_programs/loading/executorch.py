"""Run a program of ExecuTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Load the program; return the function that runs it."""
    import torch
    from executorch.runtime import Runtime

    torch.set_num_threads(threads)
    program = Runtime.get().load_program(str(folder / "model.pte"))
    method = program.load_method("forward")

    def run(arrays: list[Any]) -> list[Any]:
        outputs = method.execute([torch.from_numpy(array) for array in arrays])
        return [output.clone().numpy() for output in outputs]

    return run
