"""Copies to a device on a stream of their own, while the device computes on the usual one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class SideStream:
    """A second stream of a CUDA, ROCm or XPU device."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self.device = device
        self._module = torch.get_device_module(device)
        self._stream = self._module.Stream(device)

    def run(self, copy: Callable[[], Any]) -> tuple[Any, Any]:
        """(the result of `copy`, the event that marks its end), without waiting."""
        with self._module.stream(self._stream):
            return copy(), self._stream.record_event()

    def join(self, event: Any) -> Any:
        """Let the current stream wait for the event, and return that stream.

        The caller records it on each tensor (`record_stream`), as their memory belongs to the side
        stream.
        """
        stream = self._module.current_stream(self.device)
        stream.wait_event(event)
        return stream
