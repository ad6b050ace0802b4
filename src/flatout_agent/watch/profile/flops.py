"""Count the floating-point operations of one step as `torch.utils.flop_counter` counts them.

Its `FlopCounterMode` also puts hooks into every module to tell them apart. Those are left out: the
total is all that is wanted, and the step must stay as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack


def counter(models: list[torch.nn.Module]) -> Callable[[], float | None] | None:
    """Begin to count; returns what ends it and tells the sum (None: nothing known was called).

    None: not here. torch.compile's code runs outside of dispatch modes or would be compiled anew,
    and an operator on a distributed tensor would be counted for all devices.
    """
    if not models or any(_unfit(model) for model in models):
        return None
    if _get_current_dispatch_mode_stack():
        return None  # the script's own mode would be left while ours is inside it
    from torch.utils.flop_counter import flop_registry  # not loaded with torch

    counted: dict[str, float] = {"flops": 0.0}

    class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            formula = flop_registry.get(getattr(func, "_overloadpacket", None))
            if formula is not None:
                try:
                    counted["flops"] += formula(*args, **(kwargs or {}), out_val=out)
                except Exception:
                    counted["flops"] = float("nan")
            return out

    mode: Any = Count()  # type: ignore[no-untyped-call]  # torch's own
    mode.__enter__()

    def end() -> float | None:
        if _get_current_dispatch_mode_stack()[-1:] == [mode]:
            mode.__exit__(None, None, None)
        flops = counted["flops"]
        return flops if 0 < flops < float("inf") else None

    return end


def _unfit(model: torch.nn.Module) -> bool:
    parts = list(model.modules())
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        return True
    if any(type(part).__name__ == "OptimizedModule" for part in parts):
        return True
    return any(type(parameter.data) is not torch.Tensor for parameter in model.parameters())
