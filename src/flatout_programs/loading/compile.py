"""Compile an exported program with TorchInductor."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Load the program; return the function that runs it, and compiles in its first calls."""
    import torch
    import torch._inductor.config

    torch.set_num_threads(threads)
    saved = folder / "compiled.bin"
    if saved.exists():
        torch.compiler.load_cache_artifacts(saved.read_bytes())
    torch._inductor.config.freezing = True
    exported: Any = torch.export.load(folder / "model.pt2")
    try:
        program = exported.module(check_guards=False)
    except TypeError:  # torch before 2.9 has no guards to leave out
        program = exported.module()
    compiled: Any = torch.compile(program, dynamic=options["dynamic"] or None)

    def run(arrays: list[Any]) -> list[Any]:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=options["bf16"]):
            outputs = compiled(*[torch.from_numpy(array) for array in arrays])
        return [
            (item.float() if item.dtype == torch.bfloat16 else item).numpy() for item in outputs
        ]

    return run
