"""Choice: one build of one PyTorch release, and why it is the right one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Choice:
    """One build of one release."""

    version: str
    """2.9.1"""
    build: str
    """cu128"""
    why: tuple[str, ...]
    """Sentences: each fact that decided, with its numbers."""
    driver_needed: str | None = None
    """Oldest driver version to install first, or None if the present driver suffices."""

    @property
    def cuda(self) -> str | None:
        """The CUDA in this build, 12.8 for cu128, or None for a build without CUDA."""
        digits = re.fullmatch(r"cu(\d+)(\d)", self.build)
        return f"{digits[1]}.{digits[2]}" if digits else None

    @property
    def cuda_major(self) -> str | None:
        """12 for cu128, or None for a build without CUDA."""
        return self.cuda.partition(".")[0] if self.cuda else None

    @property
    def vendor(self) -> Literal["nvidia", "amd", "intel"] | None:
        """The vendor whose GPUs it runs on, or None for only the CPU or, on macOS, Apple's GPU."""
        if self.cuda is not None:
            return "nvidia"
        if self.build.startswith("rocm"):
            return "amd"
        return "intel" if self.build == "xpu" else None
