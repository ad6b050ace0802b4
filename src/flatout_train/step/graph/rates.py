"""An optimizer prepared for a recorded step: learning rates and counters on the device."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_UNUSED = {"params", "lr", "initial_lr", "foreach", "fused", "capturable"}
"""Entries of a parameter group that a recording does not fix as a number."""
_COUNTERS = ("step", "mu_product")
"""State that torch's optimizers keep on the CPU unless they are capturable."""
_WARNED = "_warned_capturable_if_run_uncaptured"
"""Attribute of torch's optimizers: they have warned of capturable=True in an eager step."""


class Rates:
    """The learning rates of one optimizer: numbers outside a recorded step, tensors inside.

    Outside, `group["lr"]` stays the float that schedulers, logs and checkpoints expect. Inside
    `as_tensors()` it is a 0-d float32 tensor on the device, which `send()` updates before each
    replay. An optimizer that cannot read its learning rate from a tensor keeps its floats; then
    they are part of `key()`.

    So the scheduler is not part of a recording. It is the program's own Python, which a replay does
    not run, and its counters are what checkpoints save. It costs the host 2 to 4 microseconds a
    step (benchmarks/replay_host.py), while the device is still busy with the replay.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._optimizer, self._device = optimizer, device
        self._tensors: list[Tensor | None] = []
        """Per group an element of `_rates`, or None if the group keeps its float."""
        self._rates = torch.empty(0)
        self._sent: list[float] = []
        self._fixed: list[_Fixed] = []
        self._key: Hashable = ()
        self._undo: list[Callable[[], None]] = []
        self._switched: list[dict[str, Any]] = []
        """Groups whose `capturable` was switched on."""

    def prepare(self) -> None:
        """Before the first step, and again after the optimizer's state was replaced."""
        groups = self._optimizer.param_groups
        self._rates = torch.zeros(len(groups), dtype=torch.float32, device=self._device)
        self._tensors = [
            rate if self._reads_tensor(group) else None
            for rate, group in zip(self._rates, groups, strict=True)
        ]
        self._sent, self._fixed = [], []
        if not self._undo and any("capturable" in group for group in groups):
            self._silence()
            self._undo.append(self._optimizer.register_state_dict_post_hook(self._saved).remove)
        for group in groups:
            # fused implementations keep their counters on the device: as_tensors() is enough
            if group.get("capturable") is False and not group.get("fused"):
                group["capturable"] = True
                self._switched.append(group)
                _move_counters(self._optimizer, group, self._device)
                self._undo.append(lambda group=group: self._put_back(group))  # type: ignore[misc]

    def undo(self) -> None:
        """Restore flags and counters as they were before `prepare`."""
        while self._undo:
            self._undo.pop()()

    def key(self) -> Hashable:
        """The numbers that a recording fixes, by name, per group.

        The same object as long as no group is written to.
        """
        groups = self._optimizer.param_groups
        if len(self._fixed) != len(groups) or not all(map(_Fixed.holds, self._fixed, groups)):
            self._fixed = list(map(_Fixed, groups, self._tensors))
            self._key = tuple(fixed.key for fixed in self._fixed)
        return self._key

    @contextmanager
    def as_tensors(self) -> Iterator[None]:
        """Within it the parameter groups are as a recorded step must see them."""
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
        """Write changed learning rates to the device, in one launch, without waiting."""
        rates = [
            0.0 if tensor is None else float(group["lr"])
            for tensor, group in zip(self._tensors, self._optimizer.param_groups, strict=True)
        ]
        if rates == self._sent:
            return
        if len(rates) == 1:  # the number is an argument of the launch
            self._rates.fill_(rates[0])
        else:
            # New pinned memory each time: torch does not reuse it before the copy is done.
            pinned = self._device.type == "cuda"
            values = torch.tensor(rates, dtype=torch.float32, device="cpu", pin_memory=pinned)
            self._rates.copy_(values, non_blocking=True)
        self._sent = rates

    def on_host(self) -> str | None:
        """State that an optimizer keeps on the CPU, where a replay cannot update it, or None."""
        for state in self._optimizer.state.values():
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, Tensor) and value.device.type != self._device.type:
                    kind = type(self._optimizer).__name__
                    return f"{kind} keeps its {name!r} on the {value.device.type}"
        return None

    def _reads_tensor(self, group: dict[str, Any]) -> bool:
        """Whether a tensor can replace a group's learning rate; else it is left alone."""
        rate = group["lr"]
        if isinstance(rate, Tensor) and rate.device.type == self._device.type != "cpu":
            return False  # schedulers write to it in place
        return bool(group.get("fused")) or "capturable" in group

    def _saved(self, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        """The state dict as it would be without recordings, which also loads on the CPU."""
        state = dict(saved["state"])
        for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=True):
            if not any(own is switched for switched in self._switched):
                continue
            group["capturable"] = False
            for index in group["params"]:
                values = state.get(index)
                if isinstance(values, dict) and not isinstance(optimizer, torch.optim.ASGD):
                    state[index] = {**values, **_counters(values, torch.device("cpu"))}
        return {**saved, "state": state}

    def _silence(self) -> None:
        """Suppress torch's warning of capturable=True: eager steps in between are intended."""
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
        self._switched = [switched for switched in self._switched if switched is not group]
        if not isinstance(self._optimizer, torch.optim.ASGD):  # its counters are always there
            _move_counters(self._optimizer, group, torch.device("cpu"))


class _Fixed:
    """The values that a recording fixes of one parameter group, and whether they still hold."""

    def __init__(self, group: dict[str, Any], rate: Tensor | None) -> None:
        names = [name for name in group if name not in _UNUSED or (name == "lr" and rate is None)]
        self.key = tuple((name, _plain(group[name])) for name in names)
        self._size = len(group)
        self._values = [group[name] for name in names]
        # at least two names: with a single one itemgetter would not return a tuple
        self._get = operator.itemgetter(*names, "params", "params")
        self._still = not any(map(_may_change, self._values))

    def holds(self, group: dict[str, Any]) -> bool:
        """Whether the group holds the same objects, none of which can change in place."""
        if not self._still or len(group) != self._size:
            return False
        try:
            return all(map(operator.is_, self._values, self._get(group)))
        except KeyError:
            return False


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
        return tuple(_plain(element) for element in value)
    return value if isinstance(value, bool | int | float | str | None) else id(value)


def _may_change(value: Any) -> bool:
    """Whether `_plain` of the same object may change later."""
    if isinstance(value, tuple):
        return any(map(_may_change, value))
    return isinstance(value, Tensor | list)
