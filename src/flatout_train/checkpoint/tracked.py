"""What a checkpoint holds: the tracked things, their states, and loading all of them or none."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flatout_train.errors import CheckpointError, UsageError

LISTED = 5
"""Differences that an error names."""

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


class Tracked:
    """One thing of which a checkpoint holds the state."""

    def __init__(self, name: str, thing: Any) -> None:
        _check(name, thing)
        self.name = name
        self.thing = unwrapped(thing)
        replicated = nn.Module, torch.optim.Optimizer, torch.amp.GradScaler
        schedulers = torch.optim.lr_scheduler.LRScheduler
        inner = getattr(thing, "model", None)
        self.alike = isinstance(thing, (*replicated, schedulers)) or isinstance(inner, nn.Module)
        """Whether all ranks of a data-parallel training have the same state: rank 0 writes it."""

    def state(self) -> Any:
        if isinstance(self.thing, torch.Generator):
            return {"generator": self.thing.get_state()}
        return self.thing.state_dict()

    def load(self, state: Any) -> None:
        if isinstance(self.thing, torch.Generator):
            self.thing.set_state(state["generator"])
        else:
            self.thing.load_state_dict(state)

    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer that this thing is or has."""
        for found in (self.thing, getattr(self.thing, "optimizer", None)):
            if isinstance(found, torch.optim.Optimizer):
                return found
        return None


def unwrapped(thing: Any) -> Any:
    """A model without what DDP, DataParallel and torch.compile put around it."""
    parallel = nn.parallel.DistributedDataParallel, nn.DataParallel
    while isinstance(thing, nn.Module):
        if isinstance(thing, parallel):
            thing = thing.module
        elif "_orig_mod" in thing._modules:
            thing = thing._modules["_orig_mod"]
        else:
            break
    return thing


def fit(saved: Any, current: Any) -> Any:
    """The saved state with its keys named as in the current one, where only wrappers differ.

    `module.` (DDP), `_orig_mod.` (torch.compile) and the like are taken out or put in.
    """
    if type(saved) not in (dict, OrderedDict) or not isinstance(current, Mapping):
        return saved
    names = _same_names(saved, current)
    if names is None:
        return saved
    fitted = type(saved)((new, fit(saved[old], current[new])) for old, new in names.items())
    for name, kept in vars(saved).items() if isinstance(saved, OrderedDict) else ():
        meta = getattr(current, name, None)
        renamed = _same_names(kept, meta) if isinstance(meta, dict) else None
        known = renamed or {key: key for key in kept}
        vars(fitted)[name] = OrderedDict((new, kept[old]) for old, new in known.items())
    return fitted


def differences(saved: Any, current: Any) -> list[str]:
    """How a saved state and the current one differ in names and shapes of tensors."""
    if not isinstance(saved, dict) or not isinstance(current, Mapping):
        return []
    if not _names_tensors(current):
        shared = [key for key in current if key in saved]
        return [text for key in shared for text in differences(saved[key], current[key])]
    found = [
        f"{key} {_shape(current[key])} is missing in it" for key in current if key not in saved
    ]
    found += [f"{key} {_shape(saved[key])} is only in it" for key in saved if key not in current]
    for key in current:
        old, new = saved.get(key), current[key]
        if isinstance(old, Tensor) and isinstance(new, Tensor) and old.shape != new.shape:
            found.append(f"{key} is {_shape(old)} in it and {_shape(new)} here")
    return found


def mismatch(name: str, path: Any, found: list[str], error: Exception | None) -> CheckpointError:
    """The error for a state that does not fit."""
    listed = "; ".join(found[:LISTED]) or str(error)
    more = f"; and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return CheckpointError(
        f"{name} in {path} does not fit the {name} of this program: {listed}{more}. Build it as it "
        "was when the checkpoint was written, or give Checkpoint another folder to start anew. "
        "Nothing was loaded."
    )


def load_all(states: dict[str, Any], things: list[Tracked]) -> tuple[str, Exception] | None:
    """Load every state; where one fails, its name and what it raised, and the rest is not tried."""
    for one in things:
        try:
            one.load(states[one.name])
        except Exception as error:
            return one.name, error
    return None


def put_back(before: dict[str, Any], things: list[Tracked]) -> None:
    """Load the states again that were there before a load that failed."""
    for one in things:
        with contextlib.suppress(Exception):  # the first error is the one to tell
            one.load(before[one.name])


def _check(name: str, thing: Any) -> None:
    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot name a file: track it under a plain Python name")
    if isinstance(thing, torch.Generator):
        return
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(thing, method, None)):
            raise UsageError(
                f"{name}={type(thing).__name__} has no {method}(): track things that have "
                "state_dict and load_state_dict (a DataLoader has none; flatout.loader has)"
            )


def _same_names(saved: Any, current: Any) -> dict[Any, Any] | None:
    """Key in the saved state -> key in the current one; None where they do not match."""
    if saved.keys() == current.keys():
        return {key: key for key in saved}
    if not all(isinstance(key, str) for key in (*saved, *current)):
        return None
    plain = {_plain(key): key for key in current}
    names = {key: plain.get(_plain(key)) for key in saved}
    if None in names.values() or len({*names.values()}) != len(names) or len(plain) != len(names):
        return None
    return names


def _plain(key: str) -> str:
    return ".".join(part for part in key.split(".") if part not in _WRAPPERS)


def _names_tensors(state: Mapping[Any, Any]) -> bool:
    values = state.values()
    return any(isinstance(value, Tensor) for value in values) and all(
        isinstance(key, str) for key in state
    )


def _shape(value: Any) -> str:
    return f"[{', '.join(map(str, value.shape))}]" if isinstance(value, Tensor) else "(no tensor)"
