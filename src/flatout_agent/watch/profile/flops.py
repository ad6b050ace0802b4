"""Count the floating-point operations of one step as `torch.utils.flop_counter` counts them.

Its `FlopCounterMode` also hooks every module to tell them apart. These hooks are left out: only the
total is needed, and the step must stay as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.modes import StepMode


class _Count(StepMode):
    """Sums up the operations of all operators seen."""

    def __init__(self, flow: Flow | None) -> None:
        from torch.utils.flop_counter import flop_registry  # not loaded with torch

        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.flops = 0.0
        self.flow = flow
        self._registry: Any = flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        began = time.thread_time()  # what other programs do meanwhile is not its time
        out = func(*args, **kwargs)
        spent, flops = time.thread_time() - began, 0.0
        formula = self._registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            try:
                flops = formula(*args, **kwargs, out_val=out)
            except Exception:
                flops = float("nan")
        if self.flow is None or self.flow.step == 0:
            self.flops += flops
        if self.flow is not None:
            self.flow.operator(func, args, kwargs, out, spent, flops if flops == flops else 0.0)
        return out

    def enter(self) -> None:
        super().enter()
        if self.flow is not None:
            self.flow.install()

    def leave(self) -> None:
        if self.flow is not None:
            self.flow.remove()
        super().leave()


def counter(
    models: list[torch.nn.Module], flow: Flow | None = None
) -> Callable[[], float | None] | None:
    """Begin to count; returns a function that ends counting and gives the sum (None if nothing
    known was called).

    flow: also sees each operator, even if no model is known; only the operations of its first
    step are counted.

    Returns None if counting is impossible: torch.compile's code runs outside dispatch modes or
    would be compiled again, and an operator on a distributed tensor would be counted for all
    devices.
    """
    if not (models or flow) or any(_unfit(model) for model in models):
        return None
    if _get_current_dispatch_mode_stack():
        return None  # the script's own mode would be left while ours is inside it
    mode = _Count(flow)
    mode.enter()

    def end() -> float | None:
        mode.leave()
        flops = mode.flops
        return flops if 0 < flops < float("inf") else None

    return end


def _unfit(model: torch.nn.Module) -> bool:
    parts = list(model.modules())
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        return True
    if any(type(part).__name__ == "OptimizedModule" for part in parts):
        return True
    return any(type(parameter.data) is not torch.Tensor for parameter in model.parameters())
