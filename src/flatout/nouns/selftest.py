"""SelfTest: one thing that was tried on a device, and how it went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SelfTest:
    """One test that ran in the user's interpreter."""

    name: str
    """What was tried, and on which device: "matrix product bfloat16, cuda:0"."""
    passed: bool | None
    """Whether it passed, or None if it cannot be tried here and was skipped."""
    figure: str | None = None
    """The one number worth knowing, with its unit."""
    message: str | None = None
    """Why it failed or was skipped."""
    seconds: float = 0.0
