"""Every random state that a training step may draw from: Python, NumPy, torch on each device."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

import torch

_Nest = dict[str, Any]


def capture() -> _Nest:
    """All random states of this process, as a nest of numbers, strings and `uint8` CPU tensors.

    `python` always; `numpy` where the program has imported it; `cpu` always; `cuda`, `xpu` and
    `mps` where that device is in use. Nothing waits for a device, and no device is started.
    """
    states: _Nest = {"python": random.getstate(), "cpu": torch.get_rng_state()}
    if (of_numpy_now := of_numpy()) is not None:
        states["numpy"] = of_numpy_now
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_initialized():
            states[kind] = module.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore(states: _Nest) -> None:
    """Restore the states of `capture`; those of missing devices are ignored.

    With fewer devices than at capture the first ones are restored; with more, the rest stay.
    """
    random.setstate(states["python"])
    torch.set_rng_state(states["cpu"])
    set_numpy(states.get("numpy"))
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if kind in states and module is not None and module.is_available():
            for device, state in zip(range(module.device_count()), states[kind], strict=False):
                module.set_rng_state(state, device)
    if "mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["mps"])


def of_numpy() -> _Nest | None:
    """The state of NumPy's global generator, or None where the program has not imported NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    found: _Nest = _without_arrays(numpy, numpy.random.get_state(legacy=False))
    return found


def set_numpy(state: _Nest | None) -> None:
    """Restore a state of `of_numpy`."""
    if state is not None:
        numpy = importlib.import_module("numpy")
        numpy.random.set_state(_with_arrays(numpy, state))


def _without_arrays(numpy: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_arrays(numpy, element) for key, element in value.items()}
    if isinstance(value, numpy.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.str}
    return value.item() if isinstance(value, numpy.generic) else value


def _with_arrays(numpy: Any, value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"array", "dtype"}:
        return numpy.array(value["array"], dtype=value["dtype"])
    if isinstance(value, dict):
        return {key: _with_arrays(numpy, element) for key, element in value.items()}
    return value
