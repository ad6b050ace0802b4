"""The optimizer's update in one kernel: torch's own fused implementation, if it has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.boost import Declined
from flatout_agent.speedups.fused_updates import FusedUpdate, cannot, faster

CHECKED_STEPS = 3
"""Steps before which gradients and state are checked; they do not change form afterwards."""


def fuse(optimizer: torch.optim.Optimizer) -> tuple[str, Callable[[], None]]:
    """Switch `optimizer` to its fused implementation; returns (reason, undo).

    If torch has no fused kernel for these parameters on the CPU, `foreach` is used (elsewhere that
    is already the default). The formula of the update is the same: results differ in the last bits.
    Existing state stays and is moved to where the kernel needs it, also after `load_state_dict`;
    `state_dict()` shows the flags that the optimizer was created with. An optimizer created with
    `fused=` or `foreach=`, or of a class outside torch.optim, is left alone.
    """
    reason = cannot(optimizer)
    if reason is not None:
        return f"as written: {reason}", _nothing
    try:
        flag, kernel = faster(optimizer)
    except Declined as declined:
        return f"as written: {declined}", _nothing
    switch = _StepSwitch(torch, optimizer, flag, kernel)
    switch.on()
    kind = type(optimizer).__name__
    detail = (
        f"torch's {kernel}" if flag == "fused" else f"torch has no fused {kind} for this device"
    )
    return f"{flag}: {detail}", switch.off


def _nothing() -> None:
    pass


class _StepSwitch(FusedUpdate):
    """FusedUpdate for a step that computes the gradients itself.

    Autograd gives a gradient the memory format of its parameter, so after the first steps there is
    nothing left to check: checking each parameter costs a microsecond a step.
    """

    AMP = "_step_supports_amp_scaling"
    """GradScaler's own flag: such an optimizer unscales inside its kernel, without a sync."""

    def __init__(self, torch: Any, optimizer: Any, flag: str, kernel: str) -> None:
        super().__init__(optimizer, flag, kernel)
        self.sparse = False
        self.own_amp = getattr(optimizer, self.AMP, None)

    def on(self) -> None:
        super().on()
        if self.flag == "fused":
            setattr(self.optimizer, self.AMP, True)

    def _restore(self) -> None:
        super()._restore()
        if self.own_amp is None:
            self.optimizer.__dict__.pop(self.AMP, None)
        else:
            setattr(self.optimizer, self.AMP, self.own_amp)

    def _set(self) -> None:
        if not self.sparse:
            super()._set()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self.steps >= CHECKED_STEPS or self.sparse:
            return None
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if any(p.grad is not None and p.grad.layout != torch.strided for p in parameters):
            self._restore()
            self.sparse = True  # neither kernel supports sparse gradients
            return None
        self._set()
        return super()._before_step(optimizer, args, kwargs)
