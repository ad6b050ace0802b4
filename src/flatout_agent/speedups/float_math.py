"""How float32 products are computed: TF32 on GPUs, oneDNN's float-math modes on CPUs, and undo.

These settings apply to the whole process. The boosts `tf32`, `cpu-bf16` and `onednn-matmul` and the
library's `precision` share this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Declined, Undo
from flatout_agent.speedups.precision import matmul_precision, native_bf16

if TYPE_CHECKING:
    import torch

NO_KERNELS = "oneDNN's float-math mode needs AMX (or Arm bfloat16), which this CPU lacks"
SHAPES = ((256, 1024, 256), (64, 4096, 128), (512, 64, 512))
"""Products (rows, terms, columns) that are computed both ways before the setting stays."""
EXACT = 1e-5
"""The relative error of float32 stays below this (it is at most 6e-7 here); TF32 factors give
3e-4."""


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


class OnednnProducts:
    """torch's process-wide setting, while at least one model holds it."""

    def __init__(self) -> None:
        self.holders = 0
        self.proven = False
        """The products were compared once, which takes some ten milliseconds."""
        self.restore: Undo | None = None

    def hold(self) -> None:
        """Set it with the first model. Raises Declined, and leaves everything as it was."""
        if not self.holders:
            self._set()
        self.holders += 1

    def let_go(self) -> None:
        """Restore it with the last model, unless the script has set it since."""
        self.holders -= 1
        if not self.holders and self.restore and matmul_precision() == "medium":
            self.restore()

    def engaged(self) -> tuple[bool, str]:
        """For `Applied.engaged`."""
        if matmul_precision() != "medium":
            return False, "the script set the matmul precision itself"
        return True, "float32 products by oneDNN"

    def _set(self) -> None:
        refuse_own_choice()
        usual = [] if self.proven else _products()
        self.restore = set_precision("medium")
        if self.proven:
            return
        reason = _why_not_kept(usual, _products())
        if reason is not None:
            self.restore()
            raise Declined(reason)
        self.proven = True


_settings: list[OnednnProducts] = []
"""Empty until first used."""


def onednn_products() -> OnednnProducts:
    """The setting of this process."""
    if not _settings:
        _settings.append(OnednnProducts())
    return _settings[0]


def _factors() -> list[tuple[torch.Tensor, torch.Tensor]]:
    import torch

    generator = torch.Generator(device="cpu").manual_seed(0)

    def factor(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float32, device="cpu")

    return [(factor(rows, terms), factor(terms, columns)) for rows, terms, columns in SHAPES]


def _products() -> list[torch.Tensor]:
    import torch

    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return [left @ right for left, right in _factors()]


def _why_not_kept(usual: list[torch.Tensor], products: list[torch.Tensor]) -> str | None:
    """Why the setting is rejected, or None. The products under it must differ and be as exact."""
    import torch

    for (left, right), product in zip(_factors(), products, strict=True):
        exact = left.double() @ right.double()
        error = float((product.double() - exact).norm() / exact.norm())
        if not error < EXACT:
            return f"oneDNN rounds factors on this CPU (relative error {error:.0e})"
    if all(torch.equal(before, after) for before, after in zip(usual, products, strict=True)):
        return "the products come out the same to the last bit: oneDNN did not compute them"
    return None
