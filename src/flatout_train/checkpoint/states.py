"""States copied to host memory, restricted to what can be read back safely.

`torch.load(weights_only=True)` runs no code from the file. It reads tensors, numbers, strings and
plain nests of them; anything else is rejected here, when it is saved, not when it is needed.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from typing import Any

import torch
from torch import Tensor

from flatout_train.errors import CheckpointError

MARK = "flatout.sharded"
"""Key of the dict that replaces a sharded tensor in a state; its value is the tensor's place."""

_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_OF_TORCH = (torch.Size, torch.dtype, torch.device, torch.layout)
_PLAIN = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})


class HostCopies:
    """Copies of states in host memory, which is reused for the next checkpoint.

    On CUDA the copies go to pinned memory and are only started here: the device makes them before
    the next update of the weights, and `finish` waits for them, in the thread that writes.
    """

    def __init__(self) -> None:
        self.shards: dict[str, Tensor] = {}
        """Place of a sharded tensor (DTensor) -> its copy with this rank's part on the host."""
        self.only_shards = False
        """Whether other tensors are left as they are: another rank writes them."""
        self._old: list[Tensor] = []
        self._new: list[Tensor] = []
        self._shared: dict[Any, tuple[Tensor, Tensor]] = {}
        """Address and form -> the tensor there and its copy. Tensors that a `state_dict` creates
        stay alive until all are copied: otherwise the next one may get the same address."""
        self._devices: set[torch.device] = set()
        self._events: list[Any] = []

    def begin(self) -> None:
        """Discard the copies of the last checkpoint; their memory is used again."""
        self.shards, self._old, self._new = {}, self._new, []
        self.only_shards = False
        self._shared, self._devices, self._events = {}, set(), []

    @torch.no_grad()
    def copy(self, value: Any, where: str) -> Any:
        """A nest of host tensors and plain values; CheckpointError where it cannot be stored.

        `where` is the value's name, such as `optimizer`. The copies are valid until the next
        `begin`. A sharded tensor becomes a dict with the key `MARK`, and its copy is in `shards`.
        """
        kind = type(value)
        if kind in _ATOMS or isinstance(value, _OF_TORCH):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, where)
        if kind in (dict, OrderedDict, Counter):
            copied = kind(
                {
                    self.copy(key, f"a key in {where}"): self.copy(item, f"{where}[{key!r}]")
                    for key, item in value.items()
                }
            )
            if kind is OrderedDict:  # a module's _metadata
                vars(copied).update(self.copy(vars(value), where))
            return copied
        if kind in (list, tuple, set):
            return kind(self.copy(item, f"{where}[{i}]") for i, item in enumerate(value))
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.bool_ | numpy.integer | numpy.float64):
            return value.item()
        raise CheckpointError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}: a checkpoint holds only tensors, "
            "numbers, strings and plain nests of them, which can be read back without running "
            "code. Let state_dict() return these"
        )

    def started(self) -> None:
        """Note that all copies of this checkpoint are queued."""
        self._shared = {}
        for device in self._devices:
            self._events.append(getattr(torch, device.type).current_stream(device).record_event())

    def finish(self) -> None:
        """Wait until the copies are complete."""
        for event in self._events:
            event.synchronize()

    def _tensor(self, tensor: Tensor, where: str) -> Any:
        if is_sharded(tensor):
            sharded: Any = tensor.detach()
            local = self._copied(sharded.to_local(), where)
            self.shards[where] = type(sharded)(local, sharded._spec, requires_grad=False)
            return {MARK: where, "shape": list(tensor.shape), "dtype": tensor.dtype}
        return tensor if self.only_shards else self._copied(tensor, where)

    def _copied(self, tensor: Tensor, where: str) -> Tensor:
        kind = type(tensor)
        if kind not in _PLAIN and kind not in torch.serialization.get_safe_globals():
            raise CheckpointError(
                f"{where} is a {kind.__module__}.{kind.__qualname__}: register its class with "
                "torch.serialization.add_safe_globals, or store parts of it"
            )
        tensor = tensor.detach()
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return tensor.to("cpu", copy=True)
        key = (tensor.data_ptr(), tensor.device, tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and key in self._shared:  # tied weights: stored once
            return self._shared[key][1]
        copied = self._room(tensor)
        self._shared[key] = tensor, copied
        apart = tensor.device.type in ("cuda", "xpu")
        if apart:
            self._devices.add(tensor.device)
        return copied.copy_(tensor, non_blocking=apart)

    def _room(self, tensor: Tensor) -> Tensor:
        """Memory for a copy: that of the last checkpoint, if its tensor was alike."""
        number = len(self._new)
        pinned = tensor.device.type == "cuda" and tensor.numel() > 0
        room = self._old[number] if number < len(self._old) else None
        if room is None or _form(room) != _form(tensor) or room.is_pinned() != pinned:
            room = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
        self._new.append(room)
        return room


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype


def is_sharded(value: Any) -> bool:
    """Whether this is a DTensor, without importing torch.distributed.tensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)
