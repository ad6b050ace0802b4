"""The precision a step computes in: what the device supports natively, or what was requested."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from flatout_agent.boost import Declined
from flatout_agent.speedups.accurate_ends import accurate_function
from flatout_agent.speedups.float_math import allow_tf32, multiply_in_bf16
from flatout_agent.speedups.precision import native_bf16, why_not_float32
from flatout_train.errors import UsageError

NAMES = ("auto", "bf16", "fp16", "tf32", "fp32")
PLANNED = "cpu-bf16"
"""Only in plans: float32 tensors, matrix products in bfloat16 inside oneDNN (boost cpu-bf16)."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SHORT = {torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Precision:
    """The chosen precision, and why.

    `scaler` scales the loss if gradients would underflow (float16). `undo` restores settings of the
    whole process (TF32).
    """

    name: str
    reason: str
    autocast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    undo: Callable[[], None] = _nothing
    device_type: str = "cpu"

    def context(self) -> AbstractContextManager[Any]:
        """The autocast region for forward pass and loss; an enclosing autocast of the caller wins.

        A new region each time (4 us): entering one `torch.autocast` object again while it is open
        would leave autocast enabled afterwards. Weights are cast once per region.
        """
        if self.autocast is None or torch.is_autocast_enabled(self.device_type):
            return contextlib.nullcontext()
        region = torch.autocast(self.device_type, self.autocast)
        return _accurate(region) if self.device_type == "cpu" else region


@contextlib.contextmanager
def _accurate(region: torch.autocast) -> Iterator[None]:
    """An autocast region that leaves `log_softmax` in float32 (14 us).

    On CPUs alone, autocast rounds it: an example that the model is sure of has no gradient then.
    """
    log_softmax = accurate_function("cpu", "log_softmax.int")
    log_softmax.hold()
    try:
        with region:
            yield
    finally:
        log_softmax.let_go()


def choose(precision: str, model: nn.Module, device: torch.device) -> Precision:
    """The precision for this model on this device. Raises UsageError if it cannot be used.

    "auto" is bfloat16 autocast if bfloat16 is native, else float16 with loss scaling on GPUs with
    Tensor Cores (compute capability 7.0), else float32. A model whose weights are not in float32
    keeps its precision. TF32 is not enabled in addition: autocast leaves no matrix product in
    float32 that would gain, and the setting is process-wide.
    """
    if precision not in (*NAMES, PLANNED):
        raise UsageError(f"precision={precision!r} is unknown: use one of {', '.join(NAMES)}")
    if precision == "auto":
        return _auto(model, device)
    if precision == "fp32":
        return Precision("fp32", "requested")
    _refuse_dtypes(precision, model)
    if precision == "tf32":
        return _tf32(device)
    if precision == PLANNED:
        return _cpu_bf16(device)
    return _by_name(precision, model, device)


def _auto(model: nn.Module, device: torch.device) -> Precision:
    reason = why_not_float32(model)
    if reason is not None:
        return Precision(_own(model), reason)
    bf16 = native_bf16(device)
    if not torch.amp.is_autocast_available(device.type):
        return Precision("fp32", f"torch has no autocast for devices of type {device.type}")
    if bf16.native:
        return Precision("bf16", bf16.detail, torch.bfloat16, device_type=device.type)
    if device.type == "cuda" and _capability(device) >= (7, 0):
        return _autocast("fp16", f"bfloat16 is {bf16.detail}", device)
    return Precision("fp32", f"bfloat16: {bf16.detail}")


def _autocast(name: str, reason: str, device: torch.device) -> Precision:
    scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
    return Precision(name, reason, DTYPES[name], scaler, device_type=device.type)


def _own(model: nn.Module) -> str:
    """The name of the precision of the model's weights, or "mixed" if they differ."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point() or p.is_complex()}
    if any(dtype.is_complex for dtype in dtypes):
        return "complex"
    return SHORT.get(dtypes.pop(), "fp32") if len(dtypes) == 1 else "mixed" if dtypes else "fp32"


def _refuse_dtypes(precision: str, model: nn.Module) -> None:
    """Refuse a precision that the model's weights rule out."""
    own = _own(model)
    allowed = ("fp32", "bf16", "mixed") if precision == "bf16" else ("fp32",)
    if own in allowed:
        return
    state = {"complex": "complex", "mixed": "partly in half precision"}.get(own, f"in {own}")
    cure = (
        ""
        if own == "complex"
        else f" Keep them in float32 (model.float()): {precision} casts copies of them."
    )
    raise UsageError(
        f"precision={precision!r} cannot be used: the model's weights are {state}.{cure}"
    )


def _by_name(precision: str, model: nn.Module, device: torch.device) -> Precision:
    if precision == "bf16" and _own(model) == "bf16":
        return Precision("bf16", "the model is in bfloat16 already")
    if not torch.amp.is_autocast_available(device.type):
        raise UsageError(
            f"precision={precision!r} cannot be used: torch has no autocast for devices of type "
            f"{device.type}. Use precision='fp32'."
        )
    if precision == "bf16":
        return _autocast(precision, f"requested; {native_bf16(device).detail}", device)
    return _autocast(precision, "requested; with loss scaling", device)


def _tf32(device: torch.device) -> Precision:
    lacks = _lacks_tf32(device)
    if lacks is not None:
        raise UsageError(f"precision='tf32' cannot be used: {lacks}. Use precision='auto'.")
    before = torch.get_float32_matmul_precision()
    if before != "highest":
        return Precision("tf32", f"the float32 matmul precision was already {before!r}")
    return Precision("tf32", "requested", undo=allow_tf32())


def _cpu_bf16(device: torch.device) -> Precision:
    if device.type != "cpu":
        return Precision("fp32", f"{PLANNED}: the model is on {device.type}")
    try:
        undo, _ = multiply_in_bf16()
    except Declined as reason:
        return Precision("fp32", f"{PLANNED}: {reason}")
    return Precision(PLANNED, "oneDNN multiplies in bfloat16", undo=undo)


def _lacks_tf32(device: torch.device) -> str | None:
    """Why this device has no TF32, or None if it has."""
    requirement = "an NVIDIA GPU of compute capability 8.0 or newer is needed"
    if device.type != "cuda" or torch.version.hip:
        place = "an AMD GPU" if torch.version.hip else device.type
        return f"{requirement}, and the model is on {place}"
    capability = _capability(device)
    return (
        None if capability >= (8, 0) else "{}, this one has {}.{}".format(requirement, *capability)
    )


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
