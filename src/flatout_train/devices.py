"""`device()` and `to_device()`: the device that really works here, and a nest of tensors on it."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from flatout_agent.speedups import nests
from flatout_train.errors import UsageError

RESULT = 1024.0
"""What the tiny kernel must give: the sum of an 8 x 8 matrix product of twos and ones."""


class Backend(Protocol):
    """One kind of device, as this interpreter's torch reaches it."""

    kind: str

    def missing(self) -> str | None: ...
    def count(self) -> int: ...
    def current(self) -> int: ...
    def result(self, device: torch.device) -> float: ...


class TorchBackend:
    """A kind of device that torch names: cuda (also ROCm), xpu, mps."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def missing(self) -> str | None:
        """None: torch says that it is there; "": there is none; else why it cannot be used."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            available = torch.get_device_module(self.kind).is_available()
        return None if available else "; ".join(str(warning.message) for warning in said)

    def count(self) -> int:
        return int(torch.get_device_module(self.kind).device_count())

    def current(self) -> int:
        return 0 if self.kind == "mps" else int(torch.get_device_module(self.kind).current_device())

    def result(self, device: torch.device) -> float:
        ones = torch.ones(8, 8, device=device)
        return float(((ones + ones) @ ones).sum().item())


BACKENDS = (TorchBackend("cuda"), TorchBackend("xpu"), TorchBackend("mps"))


def device() -> torch.device:
    """The fastest device that works in this process: CUDA or ROCm, XPU, MPS, else the CPU.

    A device counts when a small computation on it gives the right result, not when the driver says
    that it is there. One that fails (a broken driver, `no kernel image`, a device in exclusive use)
    is passed over, with one `RuntimeWarning` that gives the reason. Under `torchrun` and its like
    it is the device with the number LOCAL_RANK; else torch's current one. The answer is kept for
    the life of the process.

    Raises UsageError where LOCAL_RANK names a device that this machine does not have.
    """
    return _device(os.environ.get("LOCAL_RANK", ""))


@functools.cache
def _device(local_rank: str) -> torch.device:
    return choose(BACKENDS, int(local_rank) if local_rank.isdigit() else None)


def choose(backends: Iterable[Backend], local_rank: int | None) -> torch.device:
    """The first of `backends` that computes rightly; the CPU where none does."""
    for backend in backends:
        reason = backend.missing()
        if reason is None:
            found = torch.device(backend.kind, _index(backend, local_rank))
            reason = _why_not(backend, found)
            if reason is None:
                return found
        if reason:
            warnings.warn(
                f"flatout.device: {backend.kind} is not used: {reason}",
                RuntimeWarning,
                stacklevel=4,
            )
    return torch.device("cpu")


def _index(backend: Backend, local_rank: int | None) -> int:
    if local_rank is None:
        return backend.current()
    count = backend.count()
    if count == 1:  # each process was shown its own device only
        return 0
    if local_rank >= count:
        raise UsageError(
            f"LOCAL_RANK is {local_rank}, but this process sees {count} {backend.kind} devices: "
            f"start at most {count} processes on this machine"
        )
    return local_rank


def _why_not(backend: Backend, found: torch.device) -> str | None:
    try:
        result = backend.result(found)
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        return f"{found} failed a small computation ({type(error).__name__}: {''.join(first)})"
    if result != RESULT:
        return f"{found} computed {result} where {RESULT} is right: the device is faulty"
    return None


def to_device(nest: Any, device: torch.device | str | None = None) -> Any:
    """`nest` with everything in it on `device`; None: on `flatout.device()`.

    A nest is a tensor or any dict, list, tuple, NamedTuple or dataclass of nests; its type stays,
    the nest itself is never written to. Objects that move themselves by `.to(device)` are asked to:
    `PackedSequence`, Hugging Face's `BatchEncoding`, PyTorch Geometric's `Data`. What is there
    already is not copied, what cannot be moved (strings, numbers) stays as it is. Copies from
    pinned memory do not wait: work queued on the device afterwards sees them complete.
    """
    target = torch.device(device) if device is not None else _default()
    return nests.change(nest, lambda leaf: _moved(leaf, target), moves_itself)


def _default() -> torch.device:
    return _device(os.environ.get("LOCAL_RANK", ""))


def _moved(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.Tensor):
        waits = device.type == "cpu" or leaf.device.type != "cpu" or not leaf.is_pinned()
        return leaf.to(device, non_blocking=not waits)
    return leaf.to(device)


def moves_itself(value: Any) -> bool:
    """A tensor, or an object with `.to`: a `PackedSequence`, whose lengths must stay on the CPU."""
    return isinstance(value, torch.Tensor) or callable(getattr(type(value), "to", None))
