"""Bytes of the tensors in use, by purpose, counted as operators make and free them.

Storages are counted, so views cost nothing, on any device, real or fake. Only operators' outputs
are seen: memory that a kernel takes and frees internally is not included. torch's own `MemTracker`
refuses a root module that is called twice in a step, as GANs and accumulation do, and hooks every
module. Here the caller says what is a weight, a gradient or optimizer state.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Purpose = Literal["weights", "gradients", "state", "transient"]
"""transient: activations, batches, temporaries; everything without another purpose."""


class TensorBytes:
    """The storages in use on devices of one type; give it every operator's output."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._storages: dict[int, tuple[Any, int, Purpose]] = {}
        self.in_use: dict[Purpose, int] = {
            "weights": 0,
            "gradients": 0,
            "state": 0,
            "transient": 0,
        }
        self.peak = 0
        """Most transient and gradient bytes at once since `start_peak`."""
        self.transient_peak = 0
        """Most transient bytes since then ..."""
        self.gradients_then = 0
        """... and the gradients' at that moment."""
        self.largest = 0
        """Bytes of the largest new storage since this was last set to 0."""

    def see(self, tensor: torch.Tensor, purpose: Purpose | None = None) -> None:
        """Count the storage of `tensor`; a given purpose replaces the known one.

        Tensors elsewhere, sparse ones and those without a storage are left out.
        """
        if tensor.device.type != self._device_type:
            return
        try:
            storage = tensor.untyped_storage()
            size = int(storage.nbytes())
        except (NotImplementedError, RuntimeError):
            return
        key = id(storage)
        known = self._storages.get(key)
        if known is not None:
            if purpose is None or known[2] == purpose:
                return
            self.in_use[known[2]] -= known[1]
            reference = known[0]
        else:
            reference = weakref.ref(storage, self._end_of(key))
            self.largest = max(self.largest, size)
        self._storages[key] = reference, size, purpose or "transient"
        self.in_use[purpose or "transient"] += size
        self._rise()

    def start_peak(self) -> None:
        """Measure peaks from here on."""
        self.peak = self.transient_peak = self.gradients_then = 0
        self._rise()

    def _rise(self) -> None:
        transient, gradients = self.in_use["transient"], self.in_use["gradients"]
        self.peak = max(self.peak, transient + gradients)
        if transient > self.transient_peak:
            self.transient_peak, self.gradients_then = transient, gradients

    def _end_of(self, key: int) -> Callable[[object], None]:
        def freed(_: object) -> None:
            _, size, purpose = self._storages.pop(key)
            self.in_use[purpose] -= size

        return freed
