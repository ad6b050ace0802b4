"""The library's exceptions: each message names what is wrong and how to fix it."""

from __future__ import annotations


class UsageError(ValueError):
    """A training loop that cannot work as written; the message says what is wrong and the fix."""


class NonfiniteError(FloatingPointError):
    """The loss or a gradient is NaN or Inf, and `nonfinite` is "stop"."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; existing checkpoints are untouched."""
