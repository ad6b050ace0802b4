"""Values that the program may change between two steps, and that a recording would keep fixed.

A factor of the loss, a dropout's `p`, a tensor of class weights: plain Python reads them again in
each step, a replay does not. They are found in the code of the loss and of the modules' `forward`:
the names in it, looked up in instances, closures and globals.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Get = Callable[[Any], Any]

PLAIN = (bool, int, float, complex, str, bytes, type(None))
DEEPEST = 4
MOST = 4000
"""Most functions and objects that are searched."""
_SCHEDULED = frozenset({"p", "dropout", "momentum"})
"""Attributes of torch's own modules that programs change during training."""
_CELL: Get = attrgetter("cell_contents")
_STANDARD, _TORCH = sysconfig.get_path("stdlib"), str(Path(torch.__file__).parent)


class Program:
    """The values that a model's forward pass and its loss read, wherever they are stored."""

    def __init__(self, model: nn.Module, loss_fn: Any) -> None:
        self._roots = model, loss_fn
        self._numbers: dict[Any, int] = {}
        self._next = itertools.count()
        self._generation = self._number = 0
        self.changed = ""
        """The name of the value that changed last."""
        self._look()

    def number(self) -> int:
        """The same number for the same values; takes a few microseconds."""
        if not self._is_same():
            self.changed = self._name_change()
            if any(_read(get, held) is not thing for get, held, thing, _ in self._references):
                self._generation += 1
            self._look()
        return self._number

    def _is_same(self) -> bool:
        try:
            return [get(held) for get, held, _ in self._values] == self._last and all(
                get(held) is thing for get, held, thing, _ in self._references
            )
        except Exception:  # a name was removed, or its new value cannot be compared
            return False

    def _name_change(self) -> str:
        values = zip(self._values, self._last, strict=True)
        values_changed = [
            name for (get, held, name), last in values if _differs(_read(get, held), last)
        ]
        references = [
            name for get, held, last, name in self._references if _read(get, held) is not last
        ]
        return next(iter(values_changed + references), "a value")

    def _look(self) -> None:
        """Find all values again."""
        self._values: list[tuple[Get, Any, str]] = []
        self._references: list[tuple[Get, Any, Any, str]] = []
        """Objects compared by identity: tensors, and containers of values."""
        self._visited: set[Any] = set()
        model, loss_fn = self._roots
        for name, module in model.named_modules():
            self._module(module, name or type(module).__name__)
        self._callable(loss_fn, getattr(loss_fn, "__name__", "loss_fn"))
        self._last = [get(held) for get, held, _ in self._values]
        if len(self._numbers) >= MOST:
            self._numbers = {}
        key = self._generation, repr(self._last)
        if key not in self._numbers:
            self._numbers[key] = next(self._next)
        self._number = self._numbers[key]

    def _module(self, module: nn.Module, label: str) -> None:
        if not type(module).__module__.startswith("torch."):
            self._code(type(module).forward, module, label, 0)
            return
        held = vars(module)
        loss = isinstance(module, nn.modules.loss._Loss)
        for name in held if loss else _SCHEDULED & held.keys():
            if isinstance(held[name], PLAIN):
                self._values.append((itemgetter(name), held, f"{label}.{name}"))

    def _callable(self, value: Any, label: str, depth: int = 0) -> None:
        if isinstance(value, functools.partial):
            self._callable(value.func, label, depth + 1)
            for name, argument in value.keywords.items():
                self._held(itemgetter(name), value.keywords, argument, frozenset(), name, depth)
        elif isinstance(value, types.MethodType):
            self._code(value.__func__, value.__self__, label, depth)
        elif isinstance(value, types.FunctionType):
            self._code(value, None, label, depth)
        elif isinstance(value, nn.Module):
            for name, module in value.named_modules():
                self._module(module, f"{label}.{name}" if name else label)
            for name, tensor in value.named_buffers():
                self._references.append((attrgetter(name), value, tensor, f"{label}.{name}"))
        elif value is not None and not isinstance(value, type):
            call = getattr(type(value), "__call__", None)  # noqa: B004 - its code is wanted
            if isinstance(call, types.FunctionType):
                self._code(call, value, label, depth)

    def _code(self, function: Any, owner: Any, label: str, depth: int) -> None:
        """Search one function, called with `owner` as its first argument."""
        function = getattr(function, "__wrapped__", function)
        code = getattr(function, "__code__", None)
        if code is None or (depth and _is_librarys(function)):
            return
        if not self._is_new(code, owner, depth):
            return
        names = frozenset(_names(code))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._held(_CELL, cell, _read(_CELL, cell), names, name, depth)
        for held in (function.__globals__, function.__kwdefaults__ or {}):
            for name in names & held.keys():
                self._held(itemgetter(name), held, held[name], names, name, depth)
        if owner is not None:
            self._object(owner, names, label, depth)

    def _object(self, owner: Any, names: frozenset[str], label: str, depth: int) -> None:
        """Collect what code with these names may read of an object, dict, class or module."""
        if isinstance(owner, dict):
            for name in names & owner.keys():
                self._held(itemgetter(name), owner, owner[name], names, f"{label}[{name!r}]", depth)
            return
        for name in names:
            value = inspect.getattr_static(owner, name, None)
            if isinstance(value, types.FunctionType):
                self._code(value, owner, label, depth + 1)
            elif value is not None and not hasattr(type(value), "__get__"):
                self._held(attrgetter(name), owner, value, names, f"{label}.{name}", depth)

    def _held(
        self, get: Get, held: Any, value: Any, names: frozenset[str], label: str, depth: int
    ) -> None:
        if isinstance(value, PLAIN):
            self._values.append((get, held, label))
        elif isinstance(value, Tensor):
            self._references.append((get, held, value, label))
        elif isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            self._callable(value, label, depth + 1)
        elif isinstance(value, list | tuple):
            self._references.append((get, held, value, label))
            if isinstance(value, list) and all(isinstance(element, PLAIN) for element in value):
                self._values.append((tuple, value, label))
        elif not isinstance(value, nn.Module) and not _is_librarys(value):
            if not isinstance(value, types.ModuleType):
                self._references.append((get, held, value, label))
            if self._is_new(value, names, depth):
                self._object(value, names, label, depth + 1)

    def _is_new(self, what: Any, where: Any, depth: int) -> bool:
        key = id(what), where if isinstance(where, frozenset) else id(where)
        if key in self._visited or depth > DEEPEST or len(self._visited) > MOST:
            return False
        self._visited.add(key)
        return True


def _names(code: types.CodeType) -> Iterator[str]:
    """Names and strings in a function and in its nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_librarys(value: Any) -> bool:
    """Whether it belongs to torch, to Python itself or to an installed package."""
    if isinstance(value, types.ModuleType):
        file = getattr(value, "__file__", None) or "<"
    elif isinstance(value, types.FunctionType):
        file = value.__code__.co_filename
    else:
        kind = value if isinstance(value, type) else type(value)
        home = sys.modules.get(kind.__module__)
        return kind is not dict and (home is None or _is_librarys(home))
    installed = "site-packages" in file or "dist-packages" in file
    return installed or file.startswith(("<frozen", _STANDARD, _TORCH))


def _read(get: Get, held: Any) -> Any:
    try:
        return get(held)
    except (KeyError, ValueError, AttributeError):
        return Program  # equal to no value of a program


def _differs(value: Any, last: Any) -> bool:
    return type(value) is not type(last) or repr(value) != repr(last)
