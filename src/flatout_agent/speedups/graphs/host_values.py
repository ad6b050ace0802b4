"""Values that a forward pass copies from the host to its device, which a recording does not allow.

`torch.tensor(0.0, device=mask.device)` in an attention mask is one. While the pass warms up, each
value is kept on the device, keyed by its position in the pass; the recording uses the kept one. A
value that differs between passes is not constant, so the call is not recorded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from flatout_agent.speedups.graphs.recordings import NotRecordable

CHANGES = "the forward pass brings other values from the host in each call"
TRAINED = "a weight is on the host"
MADE = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor)
MADE_BY = (torch.Tensor.new_tensor,)
MOVED = (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.type_as)


class HostValues(TorchFunctionMode):
    """A mode for all passes: the warm-up passes and the recorded one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        """The value on the host and on the device."""
        self._place = 0
        self._passes = 0

    def __enter__(self) -> Any:
        self._place = 0
        return super().__enter__()  # type: ignore[no-untyped-call]  # torch's own

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]  # torch's own
        if kind is None and self._passes and self._place != len(self._kept):
            raise NotRecordable(CHANGES)
        self._passes += 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in MADE or func in MADE_BY:
            return self._made(func, args, kwargs)
        if func in MOVED and self._on_host(args[0]):
            nothing = func(args[0].new_empty(0), *args[1:], **kwargs)  # on its target
            source = self._value(args[0]) if self._there(nothing) else args[0]
            return func(source, *args[1:], **kwargs)
        if func is torch.Tensor.copy_ and self._there(args[0]) and self._on_host(args[1]):
            return func(args[0], self._value(args[1]), *args[2:], **kwargs)
        if func is torch.Tensor.__setitem__ and self._there(args[0]) and self._on_host(args[2]):
            return func(args[0], args[1], self._value(args[2]))
        return func(*args, **kwargs)

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor made from Python numbers, or from a tensor that already exists."""
        source = args[1] if func in MADE_BY else (args[0] if args else None)
        device = kwargs.get("device")
        if device is None:
            device = args[0].device if func in MADE_BY else torch.get_default_device()
        wanted = torch.device(device).type == self.device.type
        there = isinstance(source, torch.Tensor) and not self._on_host(source)
        if there or not wanted:
            return func(*args, **kwargs)
        host = func(*args, **{**kwargs, "device": "cpu"})
        gradient = host.requires_grad
        value = self._value(host.detach())
        return value.requires_grad_() if gradient else value

    def _value(self, host: torch.Tensor) -> torch.Tensor:
        """The kept copy of `host` on the device."""
        place, self._place = self._place, self._place + 1
        if host.requires_grad:
            raise NotRecordable(TRAINED)
        if place < len(self._kept):
            before, kept = self._kept[place]
            if before.dtype != host.dtype or not torch.equal(before, host):
                raise NotRecordable(CHANGES)
            return kept.clone()
        if self._passes:
            raise NotRecordable(CHANGES)
        self._kept.append((host.clone(), host.to(self.device)))
        return self._kept[place][1].clone()

    def _there(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == self.device.type

    def _on_host(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.device.type == "cpu"
            and self.device.type != "cpu"
        )
