"""Samples and other objects as one tensor of bytes: what workers and ranks send each other.

One tensor takes one file descriptor between a worker and its program; a tensor for each sample
would soon take more than a process may have.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import torch


class _Pickler(pickle.Pickler):
    """Tensors as NumPy's arrays, whose bytes are written as they are."""

    def reducer_override(self, value: Any) -> Any:
        """As pickle asks for it."""
        plain = type(value) is torch.Tensor and value.layout is torch.strided
        if (
            not plain
            or value.device.type != "cpu"
            or value.requires_grad
            or "numpy" not in sys.modules
        ):
            return NotImplemented
        try:
            return torch.from_numpy, (value.numpy(),)
        except TypeError:  # bfloat16
            return NotImplemented


def packed(values: Any) -> torch.Tensor:
    """Their bytes. Raises what their classes raise."""
    file = io.BytesIO()
    _Pickler(file, 5).dump(values)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)


def unpacked(sent: torch.Tensor) -> Any:
    """What was packed, anew."""
    return pickle.loads(bytes(sent.numpy()) if "numpy" in sys.modules else bytes(sent.tolist()))
