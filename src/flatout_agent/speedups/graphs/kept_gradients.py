"""Gradients that a program keeps in the memory of CUDA graphs, which is about to be used again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def move_out(gradients: list[torch.Tensor]) -> None:
    """Give each memory of its own, all in one copy. Each stays the same object, since the program
    may hold it.
    """
    import torch

    if gradients:
        originals = [gradient.detach() for gradient in gradients]
        copies = [torch.empty_like(original) for original in originals]
        torch._foreach_copy_(copies, originals)
        for gradient, copied in zip(gradients, copies, strict=True):
            gradient.data = copied
