"""Calls that a training loop should not make, or not in each step: how often, how long, and where.

While watching, these functions and methods are wrapped; `remove` restores them. A wrapper that the
program has bound meanwhile goes on working but records nothing.
"""

from __future__ import annotations

import builtins
import functools
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.attach.replacing import replaced
from flatout_agent.watch import places

METHODS = (
    "item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__",
    "__format__", "__repr__",
)  # fmt: skip
"""Methods of tensors that wait for the accelerator."""
MAKERS = (
    "tensor", "as_tensor", "from_numpy", "rand", "randn", "randint", "randperm", "zeros", "ones",
    "full", "arange",
)  # fmt: skip
"""Functions of torch that build tensors, on the host unless a device is named."""
LOGGERS = (
    ("torch.utils.tensorboard.writer", "SummaryWriter.add_scalar", "SummaryWriter.add_scalar"),
    ("wandb", "log", "wandb.log"),
)

HOOKED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        torch.nn.Module,
        (
            "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
            "register_full_backward_pre_hook", "register_backward_hook",
        ),
    ),
    (torch.Tensor, ("register_hook", "register_post_accumulate_grad_hook")),
    (torch.optim.Optimizer, ("register_step_pre_hook", "register_step_post_hook")),
)  # fmt: skip
HOOK = "hook"

Note = Callable[[Any, tuple[Any, ...], dict[str, Any]], str | None]
"""Maps result, args and kwargs to the detail, or None if this call is not recorded."""


class _Entry:
    __slots__ = ("calls", "detail", "handles", "s")

    def __init__(self) -> None:
        self.calls = 0
        self.s = 0.0
        self.detail = ""
        self.handles: list[Any] = []
        """The handles of the hooks that were registered."""


class Calls:
    """Watches the thread that created this object."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str | None], _Entry] = {}
        self.active = False
        self.in_loader = False
        self._inside = False
        self._thread = threading.get_ident()
        self._undo: list[Callable[[], None]] = []
        self._torch_folder = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120
        self._building: tuple[Any, float, tuple[str, str | None]] | None = None

    def install(self, outside_compiled: bool) -> None:
        """Wrap all of them.

        outside_compiled: also wrap what torch.compile would trace, and recompile.
        """
        self.active = True
        self._replace(torch, "save", "torch.save")
        self._replace(torch.nn.utils, "clip_grad_norm_", "clip_grad_norm_", _when_nonfinite)
        self._replace(torch.cuda, "synchronize", "torch.cuda.synchronize")
        self._replace(torch.cuda, "empty_cache", "torch.cuda.empty_cache")
        self._replace(torch.nn.Module, "__init__", "Module()", built=True)
        self._replace(torch.optim.Optimizer, "__init__", "Optimizer()", built=True)
        add_group = "add_param_group"
        self._replace(torch.optim.Optimizer, add_group, f"Optimizer.{add_group}", _class_of_self)
        for hooked, names in HOOKED:
            for name in names:
                self._replace(hooked, name, HOOK, _class_of_self)
        self._replace(gc, "collect", "gc.collect")
        self._replace(logging.Logger, "handle", "logging")
        for module, path, name in LOGGERS:
            owner: Any = sys.modules.get(module)
            *outer, last = path.split(".")
            for part in outer:
                owner = getattr(owner, part, None)
            if owner is not None and hasattr(owner, last):
                self._replace(owner, last, name)
        if not outside_compiled:
            return
        self._replace(builtins, "print", "print")
        for name in METHODS:
            self._replace(torch.Tensor, name, f"Tensor.{name}", _device_of_self)
        self._replace(torch, "nonzero", "Tensor.nonzero", _device_of_self)
        for name in MAKERS:
            self._replace(torch, name, f"torch.{name}", self._maker_device)

    def remove(self) -> None:
        """Restore everything."""
        self.active = False
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing while flatout itself works within the loop."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def _replace(
        self, owner: Any, attribute: str, name: str, note: Note | None = None, built: bool = False
    ) -> None:
        original = getattr(owner, attribute)
        stand_in = self._building_call(name, original) if built else (
            self._watching(name, original, note)
        )  # fmt: skip
        if not isinstance(owner, type):
            stand_in = Standing(stand_in, original)  # in a class it must not bind
        self._undo.append(replaced(owner, attribute, stand_in))

    def _watching(self, name: str, original: Any, note: Note | None) -> Callable[..., Any]:
        clock, thread = time.perf_counter, threading.get_ident

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.active or self._inside or thread() != self._thread:
                return original(*args, **kwargs)
            self._inside = True
            began = clock()
            try:
                result = original(*args, **kwargs)
                spent = clock() - began
            finally:
                self._inside = False
            try:
                detail = note(result, args, kwargs) if note is not None else ""
                if detail is not None and not self._by_torch(sys._getframe(1)):
                    self._add(name, places.where(), spent, detail, result)
            except Exception:
                self.active = (
                    False  # no count is better than a wrong one, or an error in the program
                )
            return result

        return call

    def _by_torch(self, caller: FrameType) -> bool:
        """Whether torch made the call, which the user cannot change."""
        if caller.f_code is Standing.__call__.__code__ and caller.f_back is not None:
            caller = caller.f_back
        return caller.f_code.co_filename.startswith(self._torch_folder)

    def _building_call(self, name: str, original: Any) -> Callable[..., Any]:
        """Wraps `__init__` of modules and optimizers, to find what the loop builds, with all its
        parts.
        """

        @functools.wraps(original)
        def init(instance: Any, *args: Any, **kwargs: Any) -> None:
            begin = time.perf_counter()
            original(instance, *args, **kwargs)
            if self.active and threading.get_ident() == self._thread:
                try:
                    self._built(name, instance, begin, sys._getframe(1))
                except Exception:
                    self.active = False

        return init

    def _built(self, name: str, instance: Any, began: float, frame: FrameType) -> None:
        """The outermost `__init__` on the stack shows which object is built, and where."""
        kinds = (torch.nn.Module, torch.optim.Optimizer)
        outer, caller = frame, frame.f_back
        while caller is not None:  # all frames: parts are built in comprehensions, too
            building = caller.f_code.co_name == "__init__" and caller.f_locals.get("self")
            outer, caller = caller if isinstance(building, kinds) else outer, caller.f_back
        if outer.f_code.co_name != "__init__" or outer.f_locals.get("self", instance) is instance:
            user_frame = places.user_frame(outer, inside="__init__")
            where = places.location(user_frame) if user_frame is not None else None
            self._add(name, where, time.perf_counter() - began, type(instance).__name__)
            self._building = (outer, began, (name, where))
        elif self._building is not None and self._building[0] is outer:
            # A part of that object: the time since its start is its time so far.
            _, since, key = self._building
            now = time.perf_counter()
            self.entries[key].s += now - since
            self._building = (outer, now, key)

    def _add(
        self, name: str, where: str | None, spent: float, detail: str, result: Any = None
    ) -> None:
        entry = self.entries.get((name, where))
        if entry is None:
            entry = self.entries[name, where] = _Entry()
        entry.calls += 1
        entry.s += spent
        if name == HOOK:
            entry.handles.append(result)
        if detail:
            entry.detail = detail

    def _maker_device(
        self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        return None if self.in_loader else str(result.device.type)

    def summary(self, steps: int) -> tuple[wire.CallSeen, ...]:
        """The recorded calls per step, the most time first."""
        rows = []
        for (name, where), entry in self.entries.items():
            if name == HOOK:  # removed or freed hooks do not count
                entry.calls = sum(map(_is_there, entry.handles))
            calls, seconds = entry.calls / steps, entry.s / steps
            rows.append(wire.CallSeen(name, calls, seconds, where, entry.detail))
        return tuple(sorted(rows, key=lambda call: -call.s))


class Standing:
    """Replaces a module's function; like a built-in function it does not bind to an instance."""

    def __init__(self, call: Callable[..., Any], original: Any) -> None:
        self.__wrapped__ = original
        self.__name__ = getattr(original, "__name__", "")
        self.__doc__ = getattr(original, "__doc__", None)
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def _is_there(handle: Any) -> bool:
    """Whether the hook of this handle is still registered."""
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks


def _class_of_self(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return type(args[0]).__name__ if args else ""


def _device_of_self(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return str(args[0].device.type) if args else ""


def _when_nonfinite(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    fourth = args[3] if len(args) > 3 else False
    return "error_if_nonfinite" if kwargs.get("error_if_nonfinite", fourth) else None
