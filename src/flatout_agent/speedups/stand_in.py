"""Replace a function of torch with one of ours, as long as there is a holder.

Compilers, tracers and transforms must see torch's own function. `is_plain` says whether a call is
an ordinary one, and `known_to_compilers` makes torch.jit.script and torch.compile use the original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.replacing import Replacement
from flatout_agent.speedups import nests

if TYPE_CHECKING:
    import torch

Maker = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes our function from the original."""


class StandIn:
    """Our functions under names of `owner` while there is at least one holder."""

    def __init__(self, owner: Any, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._replacement = Replacement(owner, functions)
        self.holders = 0

    def hold(self) -> None:
        """Add a holder."""
        self.holders += 1
        _held.add(self)
        self._replacement.put()

    def let_go(self) -> None:
        """Remove a holder; a function that others have wrapped since stays and calls
        the original.
        """
        self.holders -= 1
        if not self.holders:
            _held.discard(self)
            self._replacement.back()


class StandIns:
    """Several that are held together."""

    def __init__(self, makers: Mapping[Any, Mapping[str, Maker]]) -> None:
        """makers: by owner and name. Functions that compilers could not tell from the original
        are left alone.
        """
        self._members = []
        for owner, makes in makers.items():
            functions = {}
            for name, make in makes.items():
                original = getattr(owner, name)
                replacement = functools.wraps(original)(make(original))
                if known_to_compilers(original, replacement):
                    functions[name] = replacement
            self._members.append(StandIn(owner, functions))

    @property
    def holders(self) -> int:
        """How many hold them now."""
        return self._members[0].holders

    def hold(self) -> None:
        """Add a holder."""
        for member in self._members:
            member.hold()

    def let_go(self) -> None:
        """Remove a holder."""
        for member in self._members:
            member.let_go()


Way = Callable[..., Any]
"""Called like the function itself; returns None for a call that it leaves alone."""


class Ways:
    """One replacement of a function of torch, which several boosts share: two replacements would
    hide each other, depending on which boost came first.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.original = getattr(owner, name)
        self._ways: list[Way] = []
        self._stand_ins = StandIns({owner: {name: self._asking}})

    @property
    def holders(self) -> int:
        """How many ways are held now."""
        return self._stand_ins.holders

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            for way in self._ways:
                result = way(*args, **kwargs)
                if result is not None:
                    return result
            return original(*args, **kwargs)

        return function

    def add(self, way: Way, first: bool = False) -> None:
        """Ask this way from now on, before all others or after them."""
        self._ways.insert(0 if first else len(self._ways), way)
        self._stand_ins.hold()

    def remove(self, way: Way) -> None:
        """Do not ask this way any more."""
        self._ways.remove(way)
        self._stand_ins.let_go()


_held: set[StandIn] = set()


def held() -> frozenset[StandIn]:
    """Those that have a holder now: what a model's call computes may depend on them."""
    return frozenset(_held)


def is_plain(*tensors: Any) -> bool:
    """Whether these are dense tensors of torch's own class, in a call that is not compiled, traced
    or transformed.
    """
    import torch

    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    plain_types = (torch.Tensor, torch.nn.Parameter)
    return (
        all(type(tensor) in plain_types and is_dense(tensor) for tensor in tensors)
        and not torch.overrides.has_torch_function(tensors)
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
    )


def rounded_in_training(*tensors: Any) -> bool:
    """Whether autocast to bfloat16 is on for CPUs, and these are arguments of an ordinary call on a
    CPU that has a gradient.
    """
    import torch

    return (
        torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") is torch.bfloat16
        and torch.is_grad_enabled()
        and is_plain(*tensors)
        and any(tensor.requires_grad for tensor in tensors)
        and all(tensor.device.type == "cpu" for tensor in tensors)
    )


def in_float32(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call without autocast, on float32 in place of 16 bits.

    A function that writes to its first argument gets the others in that one's dtype.
    """
    import torch

    device = next(tensor.device.type for tensor in nests.tensors((args, kwargs)))
    name = function.__name__
    writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    dtype = args[0].dtype if writes else torch.float32

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        rounded = tensor.dtype in (torch.bfloat16, torch.float16)
        return tensor.to(dtype) if rounded or (writes and tensor.is_floating_point()) else tensor

    kept = 1 if writes else 0
    with torch.autocast(device, enabled=False):
        return function(
            *args[:kept], *nests.change(args[kept:], cast), **nests.change(kwargs, cast)
        )


def is_dense(tensor: torch.Tensor) -> bool:
    """Neither sparse nor nested, nor wrapped by a transformation (vmap, grad)."""
    import torch

    return bool(
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def known_to_compilers(original: Any, replacement: Any) -> bool:
    """Make torch.jit.script and torch.compile use the original instead.

    torch has two marks for wrappers. Functions in C++ are in a table that refers to them by
    address, so such a replacement must live as long as the process.
    """
    import torch

    replacement.__script_if_tracing_wrapper = True
    replacement.__original_fn = original
    try:
        builtins: Any = torch.jit._builtins
        builtin = builtins._find_builtin(original)
        if builtin is not None:
            builtins._register_builtin(replacement, builtin)
    except AttributeError:
        return False
    return True
