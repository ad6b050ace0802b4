"""What the library raises: the thing that is wrong, by name, and the cure."""

from __future__ import annotations


class UsageError(ValueError):
    """A loop that cannot work as written; the message names the thing and the cure."""


class NonfiniteError(FloatingPointError):
    """The loss or a gradient is NaN or Inf, and the policy is to stop."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; what was there before is untouched."""
