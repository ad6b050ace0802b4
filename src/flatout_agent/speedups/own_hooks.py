"""The program's own hooks on a model, which it does not expect to be called but in its own calls.

Hooks that torch and flatout register are not the program's: `weight_norm` computes its weights in
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups import nests

if TYPE_CHECKING:
    import torch

OUTPUTS, INPUTS, GRADIENTS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks"
"""Where a module has its hooks, by what they are given; a parameter has the last ones, too."""
KINDS = (OUTPUTS, INPUTS, GRADIENTS, "_backward_pre_hooks")


@dataclass
class Shown:
    """The tensors that forward hooks of the program's are given, in order."""

    inputs: list[torch.Tensor] = field(default_factory=list)
    """What the hooked modules take."""
    outputs: list[torch.Tensor] = field(default_factory=list)
    """What they give."""


def any_on(model: torch.nn.Module) -> bool:
    """Whether the program has hooks on a module or a parameter of this model."""
    return any(True for _ in _own_hooks(model))


@contextmanager
def watch(model: torch.nn.Module, called: bool) -> Iterator[Shown]:
    """What the program's hooks are given by a call of the model in this context.

    called: if False, none of them is called, neither in the call nor in its backward pass.
    """
    shown, replaced = Shown(), []
    for kind, hooks, number in list(_own_hooks(model)):
        if kind in (OUTPUTS, INPUTS) or not called:
            own = hooks[number]
            ours = hooks[number] = _noting(shown, kind, own if called else _nothing)
            replaced.append((hooks, number, own, ours))
    try:
        yield shown
    finally:
        for hook in replaced:
            put_back(*hook)


def put_back(hooks: dict[int, Any], number: int, own: Any, ours: Any) -> None:
    """Replace our hook by the program's, unless the program has removed it meanwhile."""
    if hooks.get(number) is ours:
        hooks[number] = own


def _noting(shown: Shown, kind: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    def ours(*given: Any) -> Any:
        if kind == OUTPUTS:
            shown.inputs += nests.tensors(given[1:-1])
            shown.outputs += nests.tensors(given[-1])
        elif kind == INPUTS:
            shown.inputs += nests.tensors(given[1:])
        return hook(*given)

    return ours


def _nothing(*given: Any) -> None:
    """In a hook's place."""


def _own_hooks(model: torch.nn.Module) -> Iterator[tuple[str, dict[int, Any], int]]:
    """(kind, hooks of one place by torch's numbers, number) of each hook of the program's that a
    call of the model or its backward pass calls.
    """
    import torch

    everywhere = vars(torch.nn.modules.module)
    places = [(kind, everywhere[f"_global{kind}"]) for kind in KINDS]
    places += [(kind, getattr(module, kind)) for module in model.modules() for kind in KINDS]
    places += [(GRADIENTS, parameter._backward_hooks) for parameter in model.parameters()]
    for kind, hooks in places:
        for number, hook in (hooks or {}).items():
            owner = getattr(hook, "__module__", None) or type(hook).__module__
            if not str(owner).startswith(("torch.", "flatout")):
                yield kind, hooks, number
