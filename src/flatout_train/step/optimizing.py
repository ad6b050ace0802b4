"""The optimizer's update in one kernel: torch's own fused implementation, where it has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.boost import Declined
from flatout_agent.speedups.fused_updates import FusedUpdate, cannot, faster

CHECKED_STEPS = 3
"""Steps before which gradients and state are looked at; later ones look the same."""


def fuse(optimizer: torch.optim.Optimizer) -> tuple[str, Callable[[], None]]:
    """Switch `optimizer` to its fused implementation; returns (reason, the way back).

    Where torch has no fused kernel for these parameters on the CPU, `foreach` is taken (elsewhere
    that is the default already). The update is the same formula: results differ in the last bits.
    State that is there already stays and is put where the kernel wants it, also after
    `load_state_dict`; `state_dict()` shows the flags that the optimizer was made with. An optimizer
    made with `fused=` or `foreach=`, or of a class that is not torch.optim's own, is left alone.
    """
    reason = cannot(torch, optimizer)
    if reason is not None:
        return f"as written: {reason}", _nothing
    try:
        flag, kernel = faster(torch, optimizer)
    except Declined as declined:
        return f"as written: {declined}", _nothing
    switch = _StepSwitch(torch, optimizer, flag, kernel)
    switch.on()
    kind = type(optimizer).__name__
    told = f"torch's {kernel}" if flag == "fused" else f"torch has no fused {kind} for this device"
    return f"{flag}: {told}", switch.off


def _nothing() -> None:
    pass


class _StepSwitch(FusedUpdate):
    """The same for a step that makes the gradients itself.

    Autograd gives a gradient the memory order of its parameter, so after the first steps there is
    nothing left to look for: a look at each parameter costs a microsecond a step.
    """

    AMP = "_step_supports_amp_scaling"
    """GradScaler's own flag: such an optimizer takes the scale into its kernel, with no sync."""

    def __init__(self, torch: Any, optimizer: Any, flag: str, kernel: str) -> None:
        super().__init__(torch, optimizer, flag, kernel)
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
        if any(grad.layout != torch.strided for grad in self._gradients()):
            self._restore()
            self.sparse = True  # neither kernel takes them
            return None
        self._set()
        return super()._before_step(optimizer, args, kwargs)

    def _gradients(self) -> list[Any]:
        parameters = (p for group in self.optimizer.param_groups for p in group["params"])
        return [p.grad for p in parameters if p.grad is not None]
