"""Run an exported program operator by operator, with a layout and a precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def start(folder: Path, options: dict[str, Any], threads: int) -> Any:
    """Load the program; return the function that runs it.

    options: `channels_last`; `rounding`: "kernels" (factors of products are rounded inside
    oneDNN), "autocast", or "".
    """
    import torch

    torch.set_num_threads(threads)
    exported: Any = torch.export.load(folder / "model.pt2")
    try:
        program = exported.module(check_guards=False)
    except TypeError:  # torch before 2.9 has no guards to leave out
        program = exported.module()
    layout = torch.channels_last if options["channels_last"] else torch.contiguous_format
    if options["channels_last"]:
        program = program.to(memory_format=torch.channels_last)
    if options["rounding"] == "kernels":
        onednn: Any = torch.backends.mkldnn
        onednn.matmul.fp32_precision = onednn.conv.fp32_precision = "bf16"
    autocast = options["rounding"] == "autocast"

    def run(arrays: list[Any]) -> list[Any]:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            tensors = [torch.from_numpy(array) for array in arrays]
            tensors = [
                item.to(memory_format=layout) if item.dim() == 4 else item for item in tensors
            ]
            outputs = program(*tensors)
            return [
                (item.float() if item.dtype == torch.bfloat16 else item).contiguous().numpy()
                for item in outputs
            ]

    return run
