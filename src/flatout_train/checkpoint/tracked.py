"""What a checkpoint holds: the tracked objects and their states."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flatout_train.errors import UsageError


class Tracked:
    """One object whose state a checkpoint holds; UsageError where it has none."""

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
        """The optimizer that this object is or has, or None."""
        for candidate in (self.thing, getattr(self.thing, "optimizer", None)):
            if isinstance(candidate, torch.optim.Optimizer):
                return candidate
        return None


def unwrapped(thing: Any) -> Any:
    """A model without the wrappers of DDP, DataParallel and torch.compile."""
    parallel = nn.parallel.DistributedDataParallel, nn.DataParallel
    while isinstance(thing, nn.Module):
        if isinstance(thing, parallel):
            thing = thing.module
        elif "_orig_mod" in thing._modules:
            thing = thing._modules["_orig_mod"]
        else:
            break
    return thing


def _check(name: str, thing: Any) -> None:
    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot name a file: use a plain Python identifier")
    if isinstance(thing, torch.Generator):
        return
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(thing, method, None)):
            raise UsageError(
                f"{name}={type(thing).__name__} has no {method}(): track objects with state_dict "
                "and load_state_dict (a DataLoader has neither, a flatout.loader has both)"
            )
