"""A step's state in Python: reasons against a recording, and values that a replay would
not update.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module
from torch.optim import optimizer as optimizers
from torch.utils.hooks import RemovableHandle

from flatout_agent.watch import library_pulse
from flatout_train.checkpoint import random_states

_SCALARS = (bool, int, float, str, type(None))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_EVERYWHERE = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_OF_EVERY_MODULE = tuple(f"_global{name}" for name in _HOOKS)
_TORCH, _OURS = "torch.", ("flatout_agent.", "flatout_train.")
_WRAPPERS = ("torch.nn.parallel.", "torch.distributed.", "deepspeed.")

HookPlace = tuple[str, Any, tuple[str, ...], tuple[str, ...]]
"""Description, object with the hooks, its dicts of hooks, and modules whose hooks are harmless."""


def refusal(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, scheduler: Any
) -> str | None:
    """Why this model with this optimizer cannot be recorded, or None if no reason is known."""
    return (
        _of_modules(model)
        or _of_parameters(model, device)
        or Hooks(model, optimizer).problem()
        or _of_optimizer(optimizer, scheduler)
    )


def _of_modules(model: nn.Module) -> str | None:
    for name, module in model.named_modules():
        kind = type(module)
        if f"{kind.__module__}.".startswith(_WRAPPERS):
            return f"{kind.__name__} exchanges gradients between devices during the step"
        if getattr(module, "sparse", False) is True:
            return f"{name or kind.__name__} produces sparse gradients (sparse=True)"
    return None


def _of_parameters(model: nn.Module, device: torch.device) -> str | None:
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in named:
        if f"{type(tensor).__module__}.".startswith(_WRAPPERS):
            return f"{name} is sharded over several devices"
        if tensor.device.type != device.type:
            return f"{name} is on {tensor.device}, the step on {device}"
    return None


class Hooks:
    """The hooks that a replay, which runs no Python, would not call. Torch's own are harmless.

    torch numbers all hooks of a process as they are registered. So all modules need checking only
    when that number has changed; otherwise a check costs one comparison.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._number = -1
        self._hook: HookPlace | None = None

    def problem(self) -> str | None:
        """Which hook there is, or None."""
        if self._hook is not None and not _foreign(*self._hook[1:]):
            self._hook, self._number = None, -1  # it was removed; there may be others
        if self._number != RemovableHandle.next_id:
            self._number = RemovableHandle.next_id
            self._hook = next((place for place in self._places() if _foreign(*place[1:])), None)
        return None if self._hook is None else f"{self._hook[0]}, which a replay would not call"

    def _places(self) -> Iterator[HookPlace]:
        for name, module in self._model.named_modules():
            yield f"{name or 'the model'} has a hook", module, _HOOKS, (_TORCH,)
        for name, parameter in self._model.named_parameters():
            yield f"{name} has a gradient hook", parameter, _TENSOR_HOOKS, (_TORCH,)
        yield "every module has a hook", every_module, _OF_EVERY_MODULE, (_TORCH,)
        known = (_TORCH, *_OURS)
        yield "the optimizer's step has a hook", self._optimizer, _STEP_HOOKS, known
        yield "the optimizer's step has a hook", optimizers, _EVERYWHERE, known


def _foreign(owner: Any, names: tuple[str, ...], known: tuple[str, ...]) -> bool:
    hooks = [hook for name in names for hook in (getattr(owner, name, None) or {}).values()]
    return not all(_home(hook).startswith(known) for hook in hooks)


def _home(hook: Any) -> str:
    return f"{getattr(hook, '__module__', None) or type(hook).__module__}."


class Watchers:
    """flatout's own hooks on every optimizer's step: they count steps, and act between steps.

    A recording is not a step, and a replay is one although it runs no Python: so they are removed
    while a step is recorded, and called around each replay.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Within it the hooks are not called."""
        held = [getattr(optimizers, name) for name in _EVERYWHERE]
        taken = [{key: hooks.pop(key) for key in _own_keys(hooks)} for hooks in held]
        try:
            yield
        finally:
            for hooks, mine in zip(held, taken, strict=True):
                hooks.update(mine)

    def before(self) -> None:
        """Call the pre-step hooks, before a replay."""
        self._call(optimizers._global_optimizer_pre_hooks)

    def after(self, loss: Tensor) -> None:
        """Call the post-step hooks, after a replay with this loss."""
        library_pulse.replayed(loss)
        self._call(optimizers._global_optimizer_post_hooks)

    def _call(self, hooks: Any) -> None:
        for key in _own_keys(hooks) if hooks else ():
            hooks[key](self._optimizer, (self._optimizer,), {})


def _own_keys(hooks: dict[int, Any]) -> list[int]:
    return [key for key, hook in hooks.items() if _home(hook).startswith(_OURS)]


def _of_optimizer(optimizer: torch.optim.Optimizer, scheduler: Any) -> str | None:
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        return "LBFGS decides on the host how often it evaluates the loss"
    if isinstance(optimizer, torch.optim.SparseAdam):
        return "SparseAdam needs sparse gradients"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{kind} was created with differentiable=True"
    if getattr(scheduler, "cycle_momentum", False):
        return (
            f"{type(scheduler).__name__} changes the momentum in each step, which a recording "
            "fixes (cycle_momentum=False keeps it constant)"
        )
    return None


class HostState:
    """Everything on the host that a step may change, as it was before the step was recorded.

    A recording runs the step's Python once and its kernels not at all. So whatever `changed()`
    reports afterwards would not change in replays; `restore()` restores it.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.parameters = list(model.parameters())
        self._gradients = [parameter.grad for parameter in self.parameters]
        self._held = [
            (place, held, {name: _snapshot(value) for name, value in held.items()})
            for place, held in _held(model, optimizer)
        ]
        self._random = random.getstate()
        self._torch = torch.get_rng_state()
        self._numpy = random_states.of_numpy()

    def changed(self) -> str | None:
        """What the step's Python changed, as text, or None if nothing."""
        for place, held, before in self._held:
            for name, value in held.items():
                if not _same(before.get(name, _ABSENT), _snapshot(value)):
                    return f"each step sets {place}{name}, which a replay would not do"
        if random.getstate() != self._random:
            return "each step draws from Python's random, which a replay would not do"
        if not torch.equal(torch.get_rng_state(), self._torch):
            return "each step draws random numbers on the CPU, which a replay would not do"
        if random_states.of_numpy() != self._numpy:
            return "each step draws from numpy.random, which a replay would not do"
        return None

    def restore(self) -> None:
        """Undo the recording's changes on the host."""
        for parameter, grad in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = grad
        for _, held, before in self._held:
            for name, (value, mark) in before.items():
                if isinstance(mark, int) and isinstance(value, list):
                    del value[mark:]
                held[name] = value
        random.setstate(self._random)
        torch.set_rng_state(self._torch)
        random_states.set_numpy(self._numpy)


_ABSENT = (object(), None)


def _held(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The dictionaries that hold a step's state, with the prefix of their entries' names."""
    for name, module in model.named_modules():
        place = f"{name}." if name else "model."
        yield place, vars(module)
        yield place, module._buffers
    kind = type(optimizer).__name__
    yield f"{kind}.", vars(optimizer)
    for number, group in enumerate(optimizer.param_groups):
        yield f"{kind}.param_groups[{number}].", group
    for state in optimizer.state.values():
        if isinstance(state, dict):
            yield f"{kind}.state.", state


def _snapshot(value: Any) -> tuple[Any, Any]:
    """A value, and a mark that shows whether it was changed in place."""
    if isinstance(value, Tensor):
        return value, value.data_ptr()
    if isinstance(value, list | dict | set):
        return value, len(value)
    return value, None


def _same(before: tuple[Any, Any], now: tuple[Any, Any]) -> bool:
    (old, mark), (new, new_mark) = before, now
    if old is new:
        return bool(mark == new_mark)
    return _is_plain(old) and _is_plain(new) and repr(old) == repr(new)  # NaN stays NaN


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(element) for element in value)
    return isinstance(value, _SCALARS)
