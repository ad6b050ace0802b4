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

DEEPEST = 100
"""Levels of nesting; a deeper nest is taken to contain itself."""

MARK = "flatout.sharded"
"""Key of the dict that replaces a sharded tensor in a state; its value is the tensor's place."""

_LARGEST_INT_BITS = 2000  # the reader takes integers of up to 255 bytes
_ATOMS = frozenset({float, complex, str, bytes, bool, type(None), torch.Size, torch.dtype})
_PLAIN = (Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", Tensor))  # Buffer: torch 2.5
_CURES = {
    "tuple": "store a plain tuple or dict of its fields",
    "dict": "store dict(...) of it",
    "set": "store a set or a sorted list of it",
    "deque": "store list(...) of it and build the deque in load_state_dict",
    "Enum": "store its .value or .name",
    "ndarray": "store torch.from_numpy(...) of it",
    "generic": "store .item() of it",
    "function": "omit it from state_dict and set it in load_state_dict",
}


class Staging:
    """Host memory for the copies of one checkpoint, reused for the next one.

    On CUDA the copies go to pinned memory and are only started here: the device makes them before
    the next update of the weights, and `finish` waits for them, in the thread that writes.
    """

    def __init__(self) -> None:
        self.shards: dict[str, Tensor] = {}
        """Place of a sharded tensor (DTensor) -> its copy with this rank's part on the host."""
        self._buffers: dict[str, tuple[Any, Tensor]] = {}
        self._used: dict[str, tuple[Any, Tensor]] = {}
        self._shared: dict[Any, tuple[Tensor, Tensor]] = {}
        """Address and form -> the tensor there and its copy. Tensors that a `state_dict` creates
        stay alive until all are copied: otherwise the next one may get the same address."""
        self._devices: set[torch.device] = set()
        self._events: list[Any] = []

    def begin(self) -> None:
        """Discard the copies of the last checkpoint; their memory is reused."""
        self.shards, self._buffers, self._used = {}, self._used, {}
        self._shared, self._devices, self._events = {}, set(), []

    @torch.no_grad()
    def copy(self, value: Any, where: str) -> Any:
        """A nest of host tensors and plain values; `CheckpointError` where it cannot be stored.

        `where` is the value's name, such as `optimizer`. The copies are valid until the next
        `begin`. A sharded tensor becomes a dict with the key `MARK`, and its copy is in `shards`.
        """
        return self._copy(value, where, 0)

    def started(self) -> None:
        """Note that all copies of this checkpoint are queued."""
        self._shared = {}
        for device in self._devices:
            self._events.append(getattr(torch, device.type).current_stream(device).record_event())

    def finish(self) -> None:
        """Wait until the copies are complete."""
        for event in self._events:
            event.synchronize()

    def _copy(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            if kind is bytes and not value:  # torch's reader does not support empty bytes
                raise _refusal(where, "is empty bytes", "store None")
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, where)
        if depth > DEEPEST:
            raise _refusal(where, "contains itself, or is nested too deeply", "store a flat copy")
        if kind is int:
            if value.bit_length() > _LARGEST_INT_BITS:
                raise _refusal(where, "is too large an integer", "store str(...) of it")
            return value
        if kind is dict or kind is Counter:
            return kind(self._items(value, where, depth))
        if kind is OrderedDict:
            copied = OrderedDict(self._items(value, where, depth))
            for name, element in vars(value).items():  # a module's _metadata
                vars(copied)[name] = self._copy(element, f"{where}.{name}", depth + 1)
            return copied
        if kind is list or kind is tuple:
            return kind(
                self._copy(element, f"{where}[{i}]", depth + 1) for i, element in enumerate(value)
            )
        if kind is set:
            return {_key(element, where) for element in value}
        return _other(value, where)

    def _items(self, value: dict[Any, Any], where: str, depth: int) -> dict[Any, Any]:
        return {
            _key(key, where): self._copy(element, f"{where}[{key!r}]", depth + 1)
            for key, element in value.items()
        }

    def _tensor(self, tensor: Tensor, where: str) -> Any:
        if is_sharded(tensor):
            sharded: Any = tensor.detach()
            local = self._tensor(sharded.to_local(), where)
            self.shards[where] = type(sharded)(local, sharded._spec, requires_grad=False)
            return {MARK: where, "shape": list(tensor.shape), "dtype": tensor.dtype}
        _check_class(tensor, where)
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return tensor.detach().to("cpu", copy=True)
        tensor = tensor.detach()
        form = (tensor.device, tensor.shape, tensor.stride(), tensor.dtype)
        key = (tensor.data_ptr(), form)
        if tensor.numel() and key in self._shared:  # tied weights: stored once
            return self._shared[key][1]
        old = self._buffers.pop(where, None)
        pinned = tensor.device.type == "cuda" and tensor.numel() > 0
        if old is not None and old[0] == form:
            copied = old[1]
        else:
            copied = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
        self._used[where] = form, copied
        self._shared[key] = tensor, copied
        apart = tensor.device.type in ("cuda", "xpu")
        if apart:
            self._devices.add(tensor.device)
        return copied.copy_(tensor, non_blocking=apart)


def is_sharded(value: Any) -> bool:
    """Whether this is a DTensor, without importing torch.distributed.tensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _key(key: Any, where: str) -> Any:
    """A key of a dict or a member of a set."""
    if type(key) is tuple:
        return tuple(_key(element, where) for element in key)
    if (type(key) in _ATOMS and (key or type(key) is not bytes)) or (
        type(key) is int and key.bit_length() <= _LARGEST_INT_BITS
    ):
        return key
    raise _refusal(f"a key in {where}", _is_a(key), "use a string or a number as key")


def _check_class(tensor: Tensor, where: str) -> None:
    if tensor.device.type == "meta":
        raise _refusal(where, "is on the meta device and has no values", "move the model first")
    if type(tensor) not in _PLAIN and type(tensor) not in torch.serialization.get_safe_globals():
        cure = "register its class with torch.serialization.add_safe_globals, or store parts of it"
        raise _refusal(where, _is_a(tensor), cure)


def _other(value: Any, where: str) -> Any:
    """Other values: NumPy scalars that Python represents exactly; the rest is rejected."""
    if isinstance(value, torch.device | torch.layout):
        return value
    if numpy := sys.modules.get("numpy"):
        exact = isinstance(value, numpy.bool_ | numpy.integer)
        if exact or type(value) is numpy.float64:
            return value.item()
    bases = [base.__name__ for base in type(value).__mro__]
    cure = next((text for name, text in _CURES.items() if name in bases), None)
    cure = cure or "give its class state_dict and load_state_dict, and store what that returns"
    raise _refusal(where, _is_a(value), cure)


def _is_a(value: Any) -> str:
    return f"is a {type(value).__module__}.{type(value).__qualname__}"


def _refusal(where: str, problem: str, cure: str) -> CheckpointError:
    return CheckpointError(
        f"{where} {problem}: a checkpoint holds only tensors, numbers, strings and plain "
        f"nests of them, which can be read back without running code. {cure[0].upper()}{cure[1:]}."
    )
