"""Bytes by hand, from shapes that torch's own profiler recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as f
from torch.profiler import ProfilerActivity, profile

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace import traffic
from flatout.profiling.trace.anatomy import anatomy
from flatout.profiling.trace.attribution import look
from flatout.profiling.trace.reading import read

Program = Callable[[], object]
IMAGE, OTHER = torch.randn(8, 16, 32, 32), torch.randn(8, 16, 32, 32)
N = IMAGE.numel()
WEIGHT = torch.randn(24, 16, 3, 3)
A, B = torch.randn(64, 128), torch.randn(128, 32)
TABLE, NUMBERS = torch.randn(1000, 64), torch.randint(1000, (50,))
WEIGHTS = [torch.randn(100, 10, requires_grad=True), torch.randn(70, requires_grad=True)]

# Elements are float32 unless said: 4 bytes.
CASES: dict[str, tuple[Program, Kind, int]] = {
    "two in, one out": (lambda: IMAGE + OTHER, Kind.ELEMENTWISE, 3 * N * 4),
    "a row for all": (lambda: A + B[:, 0], Kind.ELEMENTWISE, (2 * 64 * 128 + 128) * 4),
    "in place": (lambda: IMAGE.mul_(OTHER), Kind.ELEMENTWISE, 3 * N * 4),
    "written only": (lambda: IMAGE.zero_(), Kind.ELEMENTWISE, N * 4),
    "another dtype": (lambda: IMAGE.to(torch.bfloat16), Kind.CONVERSION, N * (4 + 2)),
    "a sum": (lambda: IMAGE.sum(), Kind.REDUCTION, N * 4),
    "softmax": (lambda: f.softmax(A, 1), Kind.REDUCTION, 2 * 64 * 128 * 4),
    "normalisation": (lambda: f.layer_norm(A, (128,)), Kind.NORMALISATION, 2 * 64 * 128 * 4),
    "a product": (lambda: A @ B, Kind.MATMUL, (64 * 128 + 128 * 32 + 64 * 32) * 4),
    "linear": (
        lambda: f.linear(A, B.T, B[0]),
        Kind.MATMUL,
        (64 * 128 + 128 * 32 + 32 + 64 * 32) * 4,
    ),
    "convolution": (
        lambda: f.conv2d(IMAGE, WEIGHT, padding=1),
        Kind.MATMUL,
        (N + 24 * 16 * 9 + 8 * 24 * 32 * 32) * 4,
    ),
    "rows of a table": (lambda: f.embedding(NUMBERS, TABLE), Kind.REDUCTION, 50 * (2 * 64 * 4 + 8)),
}


@pytest.mark.parametrize("name", CASES)
def test_by_hand(name: str, tmp_path: Path) -> None:
    program, kind, expected = CASES[name]
    assert moved(program, tmp_path)[kind] == expected


def test_a_training_step_counts_each_part_once(tmp_path: Path) -> None:
    """Within an operator that multiplies nothing is counted again."""
    image = IMAGE.clone().requires_grad_()
    weight = WEIGHT.clone().requires_grad_()
    found = moved(
        lambda: f.conv2d(image, weight, padding=1).backward(torch.ones(8, 24, 32, 32)), tmp_path
    )
    result = 8 * 24 * 32 * 32
    forward = N + weight.numel() + result
    backward = result + 2 * N + 2 * weight.numel()
    assert found[Kind.MATMUL] == pytest.approx((forward + backward) * 4, rel=0.02)


def test_a_fused_optimizer_writes_all_but_the_gradients(tmp_path: Path) -> None:
    optimizer = torch.optim.AdamW(WEIGHTS, fused=True)
    sum(weight.sum() for weight in WEIGHTS).backward()  # type: ignore[union-attr]
    optimizer.step()
    found = moved(optimizer.step, tmp_path)
    elements = sum(weight.numel() for weight in WEIGHTS)
    assert found[Kind.OPTIMIZER] == pytest.approx(7 * elements * 4, rel=0.05)


@pytest.mark.parametrize("shapes", ["", ", ", "nothing", "3x", "-1"])
def test_what_is_no_shape_moves_nothing(shapes: str) -> None:
    assert traffic.of_operator("aten::add", shapes, "float", "") <= 0


def moved(program: Program, folder: Path) -> dict[Kind, float]:
    """Bytes by kind, of the whole recording."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        program()
    path = folder / "trace.json"
    recorded.export_chrome_trace(str(path))
    (recording,) = read([path])
    return {part.kind: part.bytes for part in anatomy(look(recording)).parts if part.bytes}
