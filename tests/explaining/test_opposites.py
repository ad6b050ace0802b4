"""Where opposite causes print the same line, the rest of the text decides; else nothing is sure."""

from __future__ import annotations

import pytest

from flatout.explaining.explaining import explain_text
from flatout.nouns.signature import Confidence

SELECT = "LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.shfl.sync.bfly.i32"
PTXAS = (
    "triton.runtime.errors.PTXASError: `ptxas` stderr:\n"
    "ptxas fatal   : Value 'sm_{}' is not defined for option 'gpu-name'"
)
XFORMERS = "requires device with capability <= (9, 0) but your GPU has capability ({}, 0) (too {})"
TORCH = "NVIDIA {} with CUDA capability sm_{} is not compatible with the current PyTorch"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"'sm_120' is not a recognized processor for this target\n{SELECT}", "Triton is too old"),
        (f"running on NVIDIA GeForce RTX 5090\n{SELECT}", "Triton is most likely too old"),
        (PTXAS.format(120), "ptxas is too old"),
        (PTXAS.format(70), "ptxas is too new"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120'", "nvcc is too old"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_35'", "no longer supports"),
        ("ValueError: Unknown CUDA arch (12.0) or GPU not supported", "too old for the GPU"),
        ("ValueError: Unknown CUDA arch (3.0) or GPU not supported", "too new for the GPU"),
        (TORCH.format("GeForce GTX 1080 Ti", 61), "is too old for the installed PyTorch"),
        (XFORMERS.format(12, "new"), "is too new for this xFormers"),
        (XFORMERS.format(7, "old"), "is too old for this xFormers"),
    ],
)
def test_the_direction_is_the_texts(text: str, told: str) -> None:
    assert told in explain_text(text).matches[0].title.en


@pytest.mark.parametrize(
    "text",
    [
        SELECT,
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "nvcc fatal   : Unsupported gpu architecture 'compute_70'",
    ],
)
def test_without_more_nothing_is_certain(text: str) -> None:
    match = explain_text(text).matches[0]
    assert match.confidence is not Confidence.HIGH
    assert "is too old" not in match.title.en
