"""An optimizer made ready for a recorded step: rates on the device, counters on the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_UNUSED = {"params", "lr", "initial_lr", "foreach", "fused", "capturable"}
"""Entries of a parameter group that do not stand in a recording as a number."""
_COUNTERS = ("step", "mu_product")
"""State that torch's optimizers keep on the CPU unless they are capturable."""
_WARNED = "_warned_capturable_if_run_uncaptured"
"""Where torch's optimizers note that they have warned of capturable=True in an eager step."""


class Rates:
    """The learning rates of one optimizer, as numbers outside of a recorded step, tensors inside.

    Outside, `group["lr"]` stays the float that schedulers, logs and checkpoints know. Inside
    `as_tensors()` it is a 0-d float32 tensor on the device, which `send()` brings up to date before
    each replay. An optimizer that cannot read a rate from a tensor keeps its floats; then they are
    part of `key()`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._optimizer, self._device = optimizer, device
        self._tensors: list[Tensor | None] = []
        self._sent: list[float | None] = []
        self._undo: list[Callable[[], None]] = []
        self._switched: list[dict[str, Any]] = []
        """Groups that were not capturable."""

    def prepare(self) -> None:
        """Before the first step, and again after the optimizer's state was replaced."""
        groups = self._optimizer.param_groups
        self._tensors = [self._made(group) for group in groups]
        self._sent = [None] * len(groups)
        if not self._undo and any("capturable" in group for group in groups):
            self._silence()
            self._undo.append(self._optimizer.register_state_dict_post_hook(self._saved).remove)
        for group in groups:
            # fused implementations count on the device anyway: as_tensors() is enough for them
            if group.get("capturable") is False and not group.get("fused"):
                group["capturable"] = True
                self._switched.append(group)
                _move_counters(self._optimizer, group, self._device)
                self._undo.append(lambda group=group: self._put_back(group))  # type: ignore[misc]

    def undo(self) -> None:
        """Flags and counters as they were before `prepare`."""
        while self._undo:
            self._undo.pop()()

    def key(self) -> Hashable:
        """The numbers that a recording fixes; by name, group for group."""
        return tuple(
            tuple(
                (name, _plain(value))
                for name, value in group.items()
                if name not in _UNUSED or (name == "lr" and tensor is None)
            )
            for group, tensor in zip(self._optimizer.param_groups, self._tensors, strict=True)
        )

    @contextmanager
    def as_tensors(self) -> Iterator[None]:
        """The parameter groups as a recorded step has to see them."""
        self.send()
        groups = self._optimizer.param_groups
        before = [(group, group["lr"], group.get("capturable")) for group in groups]
        try:
            for group, tensor in zip(groups, self._tensors, strict=True):
                if tensor is not None:
                    group["lr"] = tensor
                if "capturable" in group:
                    group["capturable"] = True
            yield
        finally:
            for group, rate, capturable in before:
                group["lr"] = rate
                if "capturable" in group:
                    group["capturable"] = capturable

    def send(self) -> None:
        """Write the rates that changed to the device; no wait."""
        for place, group in enumerate(self._optimizer.param_groups):
            tensor = self._tensors[place]
            if tensor is not None and (rate := float(group["lr"])) != self._sent[place]:
                tensor.fill_(rate)
                self._sent[place] = rate

    def on_host(self) -> str | None:
        """State that an optimizer keeps on the CPU, where a recording cannot count it on."""
        for state in self._optimizer.state.values():
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, Tensor) and value.device.type != self._device.type:
                    kind = type(self._optimizer).__name__
                    return f"{kind} keeps its {name!r} on the {value.device.type}"
        return None

    def _made(self, group: dict[str, Any]) -> Tensor | None:
        """The tensor that stands for a group's rate; None: the rate stays as it is."""
        rate = group["lr"]
        if isinstance(rate, Tensor) and rate.device.type == self._device.type != "cpu":
            return None  # schedulers write into it already
        if not group.get("fused") and "capturable" not in group:
            return None
        return torch.zeros((), dtype=torch.float32, device=self._device)

    def _saved(self, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        """The state dict as it would be without recordings: it loads on the CPU as well."""
        state = dict(saved["state"])
        for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=True):
            if not any(own is each for each in self._switched):
                continue
            group["capturable"] = False
            for index in group["params"]:
                values = state.get(index)
                if isinstance(values, dict) and not isinstance(optimizer, torch.optim.ASGD):
                    state[index] = {**values, **_counters(values, torch.device("cpu"))}
        return {**saved, "state": state}

    def _silence(self) -> None:
        """Eager steps in between are meant: torch's warning of capturable=True says nothing new."""
        had = vars(self._optimizer).get(_WARNED)
        setattr(self._optimizer, _WARNED, True)

        def undo() -> None:
            if had is None:
                vars(self._optimizer).pop(_WARNED, None)
            else:
                setattr(self._optimizer, _WARNED, had)

        self._undo.append(undo)

    def _put_back(self, group: dict[str, Any]) -> None:
        group["capturable"] = False
        self._switched = [each for each in self._switched if each is not group]
        if not isinstance(self._optimizer, torch.optim.ASGD):  # it counts on the device always
            _move_counters(self._optimizer, group, torch.device("cpu"))


def _move_counters(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], device: torch.device
) -> None:
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        state.update(_counters(state, device))


def _counters(state: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    return {
        name: state[name].to(device) for name in _COUNTERS if isinstance(state.get(name), Tensor)
    }


def _plain(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return value if isinstance(value, bool | int | float | str | None) else id(value)
