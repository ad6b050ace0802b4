"""How float32 products are computed: TF32 on GPUs, oneDNN's float-math modes on CPUs, and undo.

These settings apply to the whole process. The boosts `tf32` and `cpu-bf16` and the library's
`precision` share this.
"""

from __future__ import annotations

from typing import Any

from flatout_agent.boost import Declined, Undo
from flatout_agent.speedups.precision import matmul_precision, native_bf16

NO_KERNELS = "oneDNN's float-math mode needs AMX (or Arm bfloat16), which this CPU lacks"


def set_precision(precision: str, convolutions: str | None = None) -> Undo:
    """Set the precision of float32 products, and of oneDNN's convolutions; returns the undo.

    `precision` is that of `torch.set_float32_matmul_precision`, the older call: reading the
    precision after the newer settings alone (torch 2.9 and later, by backend) raises an error. The
    older call also changes the newer settings. `convolutions` is a newer setting that older
    releases lack.
    """
    import torch

    before = torch.get_float32_matmul_precision()
    cuda, mkldnn = torch.backends.cuda, torch.backends.mkldnn
    parts: list[Any] = [getattr(cuda, "matmul", None), getattr(mkldnn, "matmul", None)]
    conv = getattr(mkldnn, "conv", None)
    if convolutions is not None and hasattr(conv, "fp32_precision"):
        parts.append(conv)
    settings = [(part, part.fp32_precision) for part in parts if hasattr(part, "fp32_precision")]
    torch.set_float32_matmul_precision(precision)
    if convolutions is not None and len(settings) == 3:
        settings[-1][0].fp32_precision = convolutions

    def undo() -> None:
        torch.set_float32_matmul_precision(before)
        for part, value in settings:
            part.fp32_precision = value

    return undo


def allow_tf32() -> Undo:
    """Let float32 products round their factors to TF32; returns the undo."""
    return set_precision("high")


def refuse_own_choice() -> None:
    """Raise Declined if the program set the precision of float32 products itself."""
    precision = matmul_precision()
    if precision != "highest":
        where = "for one backend" if precision == "mixed" else precision
        raise Declined(f"the script sets the matmul precision itself ({where})")


def multiply_in_bf16() -> tuple[Undo, str]:
    """Let oneDNN round the factors of float32 products on the CPU to bfloat16.

    Returns (the undo, how this CPU computes bfloat16). Raises Declined if it would not.
    """
    bf16 = native_bf16("cpu")
    if not bf16.native:
        raise Declined(f"bfloat16: {bf16.detail}")
    # oneDNN honours the mode only with its AMX or Arm kernels; elsewhere it still multiplies in
    # float32.
    if not bf16.inside_float32:
        raise Declined(NO_KERNELS)
    refuse_own_choice()
    return set_precision("medium", convolutions="bf16"), bf16.detail


def rounding_error() -> float:
    """Relative error of a float32 product as the CPU computes it now (bfloat16 factors: 3e-3)."""
    import torch

    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))
        exact = left.double() @ right.double()
        return float(((left @ right).double() - exact).norm() / exact.norm())
