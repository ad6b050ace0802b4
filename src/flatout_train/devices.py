"""`device()` and `to_device()`: a device that really works, and moving nests of tensors to it."""

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
"""Expected result of the test kernel: the sum of an 8 x 8 matrix product of twos and ones."""


class Backend(Protocol):
    """One kind of device, as this interpreter's torch accesses it."""

    kind: str

    def missing(self) -> str | None: ...
    def count(self) -> int: ...
    def current(self) -> int: ...
    def result(self, device: torch.device) -> float: ...


class TorchBackend:
    """A device type of torch: cuda (also ROCm), xpu, mps."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def missing(self) -> str | None:
        """None if torch reports the device, "" if there is none, else why it cannot be used."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            available = torch.get_device_module(self.kind).is_available()
        return None if available else "; ".join(str(warning.message) for warning in caught)

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

    A device counts when a small computation on it gives the right result, not when the driver
    reports it. A device that fails (a broken driver, `no kernel image`, exclusive use by another
    process) is skipped, with one `RuntimeWarning` that gives the reason. Under `torchrun` and
    similar launchers it is the device with index LOCAL_RANK; else torch's current device. The
    result is cached for the life of the process.

    Raises UsageError if LOCAL_RANK is the index of a device that this process does not see.
    """
    return _device(os.environ.get("LOCAL_RANK", ""))


@functools.cache
def _device(local_rank: str) -> torch.device:
    return choose(BACKENDS, int(local_rank) if local_rank.isdigit() else None)


def choose(backends: Iterable[Backend], local_rank: int | None) -> torch.device:
    """The device of the first backend that computes correctly, or the CPU if none does."""
    for backend in backends:
        reason = backend.missing()
        if reason is None:
            candidate = torch.device(backend.kind, _index(backend, local_rank))
            reason = _why_not(backend, candidate)
            if reason is None:
                return candidate
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
    if count == 1:  # each process sees its own device only
        return 0
    if local_rank >= count:
        raise UsageError(
            f"LOCAL_RANK is {local_rank}, but this process sees {count} {backend.kind} devices: "
            f"start at most {count} processes on this machine"
        )
    return local_rank


def _why_not(backend: Backend, candidate: torch.device) -> str | None:
    try:
        result = backend.result(candidate)
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        return f"{candidate} failed a small computation ({type(error).__name__}: {''.join(first)})"
    if result != RESULT:
        return f"{candidate} computed {result} instead of {RESULT}: the device is faulty"
    return None


def to_device(nest: Any, device: torch.device | str | None = None) -> Any:
    """`nest` with all its tensors on `device`, or on `flatout.device()` if it is None.

    A nest is a tensor or any dict, list, tuple, NamedTuple or dataclass of nests. Types are kept,
    and the nest itself is never written to. Objects with their own `.to(device)` are moved by it:
    `PackedSequence`, Hugging Face's `BatchEncoding`, PyTorch Geometric's `Data`. Tensors on the
    device already are not copied; what cannot be moved (strings, numbers) is returned unchanged.
    Copies from pinned memory do not wait: work queued on the device afterwards sees them complete.

    Raises UsageError as `flatout.device()` does, for `device` None.
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
    """Whether this is a tensor, or an object with `.to` (a `PackedSequence` keeps its lengths)."""
    return isinstance(value, torch.Tensor) or callable(getattr(type(value), "to", None))
