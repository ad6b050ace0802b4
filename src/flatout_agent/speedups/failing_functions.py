"""Functions of torch that fail under autocast are computed in float32.

Autocast hands on what its own functions return in 16 bits, and leaves it to the script that other
functions take it: sparse products, Fourier transforms, decompositions and `numpy` do not, and
`scatter_add_` or an assignment to a part of a tensor refuse two dtypes. By hand one writes
`.float()` or `.to(x.dtype)` there; this does the same.

A call of a model that failed is repeated inside `Mending`, which finds the functions. From then on
they are replaced for arguments of the kinds that failed, as long as some model is run in 16 bits.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from flatout_agent.speedups import nests
from flatout_agent.speedups.sparse_products import sparse_products
from flatout_agent.speedups.stand_in import StandIns, in_float32

Function = Callable[..., Any]
Kinds = tuple[tuple[str, torch.dtype, torch.layout], ...]
"""Device type, dtype and layout of each tensor among the arguments."""
TRIES = 2
"""A call is made again so often with the functions in float32 that failed."""
ABOUT_DTYPES = re.compile(r"d ?type|scalar ?type|bfloat16|half\b|data type", re.IGNORECASE)
"""In the errors of functions that were given 16 bits."""


def is_about_dtypes(error: Exception) -> bool:
    """Whether an error may come from a function that does not take 16 bits."""
    expected = isinstance(error, (RuntimeError, TypeError, ValueError))
    return expected and ABOUT_DTYPES.search(str(error)) is not None


class MendedFunctions:
    """Replaces the functions that are known to fail, while it is held."""

    def __init__(self) -> None:
        self.failing: dict[Function, set[Kinds]] = {}
        """Kinds of arguments with which a function fails under autocast, but not in float32."""
        self.unreached = False
        """Some function is called by other ways than its name in torch: only `Mending` helps."""
        self._stand_ins: dict[Function, StandIns] = {}
        self._holders = 0

    @property
    def names(self) -> tuple[str, ...]:
        """What is computed in float32, as torch names it."""
        return tuple(resolve_name(function) or function.__name__ for function in self.failing)

    def hold(self) -> None:
        """Put the replacements in place, also those that are added later."""
        self._holders += 1
        sparse_products().of_sparse.hold()
        if self._holders == 1:
            for stand_ins in self._stand_ins.values():
                stand_ins.hold()

    def let_go(self) -> None:
        """Take them back, if nobody else holds them."""
        self._holders -= 1
        sparse_products().of_sparse.let_go()
        if not self._holders:
            for stand_ins in self._stand_ins.values():
                stand_ins.let_go()

    def call(self, made: Callable[[], Any]) -> Any:
        """What `made` gives under autocast. If a function in it takes no 16 bits, it is found, and
        the call made again: the attempt itself may have saved tensors for the backward pass.
        """
        for _ in range(TRIES):
            if self.unreached:
                break
            try:
                return made()
            except Exception as error:
                if not is_about_dtypes(error):
                    raise
            with Mending():
                made()
        with Mending():
            return made()

    def add(self, function: Function, kinds: Kinds) -> None:
        """Compute `function` in float32 for such arguments from now on."""
        of_ours = getattr(function, "__wrapped__", None)  # torch itself looks `__setitem__` up
        function = of_ours if of_ours in self.failing else function
        self.failing.setdefault(function, set()).add(kinds)
        if function in self._stand_ins:
            return
        *parts, name = (resolve_name(function) or "torch.").split(".")
        owner: Any = torch
        for part in parts[1:]:
            owner = getattr(owner, part, None)
        if getattr(owner, name, None) is not function:
            self.unreached = True
            return
        stand_ins = self._stand_ins[function] = StandIns({owner: {name: self._replacement}})
        if self._holders:
            stand_ins.hold()

    def _replacement(self, original: Function) -> Function:
        failing = self.failing[original]

        def mended(*args: Any, **kwargs: Any) -> Any:
            kinds = kinds_of(args, kwargs)
            if kinds in failing and any(torch.is_autocast_enabled(kind) for kind, _, _ in kinds):
                return in_float32(original, args, kwargs)
            return original(*args, **kwargs)

        return mended


class Mending(TorchFunctionMode):
    """Computes functions in float32 that fail otherwise, and adds them to those to be replaced."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The result of `func`."""
        kwargs = kwargs or {}
        known, kinds = mended_functions(), kinds_of(args, kwargs)
        if kinds in known.failing.get(func, ()):
            known.unreached = True
            return in_float32(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            if not is_about_dtypes(error):
                raise
            failed = error
        try:
            result = in_float32(func, args, kwargs)
        except Exception:
            raise failed from None
        known.add(func, kinds)
        return result


def kinds_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kinds:
    """What decides whether a function fails under autocast."""
    tensors = nests.tensors((args, kwargs))
    return tuple((tensor.device.type, tensor.dtype, tensor.layout) for tensor in tensors)


@functools.cache
def mended_functions() -> MendedFunctions:
    """The instance of this process."""
    return MendedFunctions()
