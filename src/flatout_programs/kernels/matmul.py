"""Matrix products by number format, over sizes and shapes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from flatout_programs.kernels import sizes
from flatout_programs.kernels.kernel import CeilingKernel, Point, Setup, Slice
from flatout_programs.kernels.timing import Clock, median_s

Shape = tuple[int, int, int]
"""m, n, k: (m x k) times (k x n)."""
QUICK: tuple[Shape, ...] = ((4096, 4096, 4096), (8192, 8192, 8192))
FULL: tuple[Shape, ...] = (
    *((n, n, n) for n in (512, 1024, 2048, 4096, 8192)),
    (8192, 16384, 4096),
    (16384, 8192, 2048),
    (16384, 16384, 8192),
)
CPU_QUICK: tuple[Shape, ...] = ((1024, 1024, 1024), (2048, 2048, 2048))
CPU_FULL: tuple[Shape, ...] = (
    *((n, n, n) for n in (256, 512, 1024, 2048, 4096)),
    (4096, 4096, 1024),
    (8192, 8192, 1024),
)
DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}
IMPORTANT = ("bf16", "fp16", "fp32", "tf32", "fp8", "fp64")
"""If time runs out, the last are left out."""


def kernels(setup: Setup) -> list[CeilingKernel]:
    """Each format that a device multiplies natively; on the CPU fp32, bf16 and fp64."""
    family = []
    for device in setup.accelerators:
        for name in IMPORTANT:
            if name in formats(setup.torch, device):
                curve = partial(products, setup, device, name)
                title = f"matrix product, {name}"
                family.append(CeilingKernel(f"matmul-{name}", title, device, "TFLOP/s", curve, 2.0))
    for name in ("fp32", "bf16", "fp64"):
        curve = partial(products, setup, "cpu", name)
        title = f"matrix product, {name}, {setup.cores} cores"
        note = ""
        if name == "bf16":
            from flatout_agent.speedups import precision

            bf16 = precision.native_bf16("cpu")
            note = bf16.detail
            title = f"matrix product, bf16 ({bf16.instructions or 'emulated'})"
        family.append(
            CeilingKernel(f"matmul-cpu-{name}", title, "cpu", "TFLOP/s", curve, 2.0, note)
        )
    return family


def formats(torch: Any, device: str) -> tuple[str, ...]:
    """Formats that the device multiplies in hardware."""
    kind = device.partition(":")[0]
    if kind == "mps":
        return ("fp32", "fp16", "bf16")
    if kind != "cuda":
        return ("fp32", "fp16", "bf16")
    if torch.version.hip:
        tf32, fp8 = ("tf32",) if "gfx94" in _gfx(torch, device) else (), float8(torch, device)
        return ("fp64", "fp32", *tf32, "fp16", "bf16", *(("fp8",) if fp8 else ()))
    capability = torch.cuda.get_device_capability(device)
    ampere = ("tf32", "bf16") if capability >= (8, 0) else ()
    fp8 = ("fp8",) if float8(torch, device) is not None else ()
    return ("fp64", "fp32", "fp16", *ampere, *fp8)


def float8(torch: Any, device: str) -> Any:
    """The device's 8-bit dtype, or None if it has none or this torch cannot multiply it."""
    if not hasattr(torch, "_scaled_mm"):
        return None
    if torch.version.hip:
        name = {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn"}.get(_gfx(torch, device))
        return getattr(torch, name or "", None)
    if torch.cuda.get_device_capability(device) >= (8, 9):
        return getattr(torch, "float8_e4m3fn", None)
    return None


def _gfx(torch: Any, device: str) -> str:
    name = getattr(torch.cuda.get_device_properties(device), "gcnArchName", "")
    return str(name).partition(":")[0]


def products(setup: Setup, device: str, name: str, time_slice: Slice) -> Iterator[Point]:
    """TFLOP/s over shapes."""
    cpu = device == "cpu"
    shapes = (CPU_QUICK if setup.quick else CPU_FULL) if cpu else (QUICK if setup.quick else FULL)
    clock = Clock(setup.torch, device)

    def measure(shape: Shape, budget_s: float) -> tuple[str, float, float]:
        seconds = median_s(clock, product(setup, device, name, shape), budget_s)
        m, n, k = shape
        return f"{m}x{n}x{k}", 2.0 * m * n * k / seconds / 1e12, seconds

    fitting = [shape for shape in shapes if _bytes(shape) < 0.4 * setup.free_bytes(device)]
    with precise(setup.torch, name):
        yield from sizes.over(fitting, lambda s: float(s[0] * s[1] * s[2]), measure, time_slice)


@contextlib.contextmanager
def precise(torch: Any, name: str) -> Iterator[None]:
    """float32 as float32, or as TF32; afterwards as before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product(setup: Setup, device: str, name: str, shape: Shape) -> Any:
    """An action that multiplies rotating sets of operands."""
    torch = setup.torch
    m, n, k = shape
    if name == "fp8":
        return _product_fp8(setup, device, shape)
    dtype = getattr(torch, DTYPES[name])

    def make() -> Any:
        return setup.random((m, k), dtype, device), setup.random((k, n), dtype, device)

    operands = setup.sets(device, make, (m * k + k * n) * dtype.itemsize)
    out = torch.empty(m, n, dtype=dtype, device=device)

    def act(call: int) -> None:
        left, right = operands[call % len(operands)]
        torch.mm(left, right, out=out)

    return act


def _product_fp8(setup: Setup, device: str, shape: Shape) -> Any:
    """A product into bfloat16 with one scale per operand, as in 8-bit training."""
    torch = setup.torch
    m, n, k = shape
    dtype = float8(torch, device)
    scale = torch.ones((), device=device)

    def make() -> Any:
        # The second operand must be column-major.
        return setup.random((m, k), dtype, device), setup.random((n, k), dtype, device).t()

    operands = setup.sets(device, make, m * k + k * n)

    def act(call: int) -> None:
        left, right = operands[call % len(operands)]
        torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=True)

    return act


def _bytes(shape: Shape) -> int:
    m, n, k = shape
    return 8 * (m * k + k * n + m * n)
