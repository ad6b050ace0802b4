"""The threads that operators on the CPU compute with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flatout_agent.limits import world_size

if TYPE_CHECKING:
    from flatout_agent.boost import Undo


def use(count: int) -> Undo:
    """Compute with so many threads; undo restores the number unless the program has changed it."""
    import torch

    before = int(torch.get_num_threads())
    torch.set_num_threads(count)

    def undo() -> None:
        if torch.get_num_threads() == count:
            torch.set_num_threads(before)

    return undo


def named() -> bool:
    """Whether a variable names the number of threads, and not torchrun has set it."""
    variables = any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    return variables and world_size() == 1
