"""Tensors that leave a model's call in other ways than as its result.

A call leaves them in attributes of its modules (a term of the loss, the balance of experts) or
gives them to the program's forward hooks (features for a perceptual loss, statistics). The program
gets them in the type and memory format that they have without the boost, so nothing fails that
would not fail without it (bfloat16 has no NumPy type, `.view()` needs the usual format).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.nests import change, is_tensor

if TYPE_CHECKING:
    import torch

LOOKS = 3
"""Calls after which attributes and hooks are known, in training and in evaluation."""
MOST_MEMBERS = 64
"""Longer lists are not looked through: they hold data, not what a call computed."""


def attributes(model: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """(`__dict__` of a module, name, value) of the attributes that may hold such tensors."""
    import torch

    modules_own = vars(torch.nn.Module())
    for module in model.modules():
        owner = vars(module)
        for name, value in owner.items():
            several = type(value) in (list, tuple, dict) and len(value) <= MOST_MEMBERS
            if name not in modules_own and (several or is_tensor(value)):
                yield owner, name, value


class KeptTensors:
    """Those of one model: tensors in attributes, also in lists, tuples and dicts, and in hooks."""

    def __init__(self, model: torch.nn.Module, usual: Callable[[torch.Tensor], Any]) -> None:
        """usual: a tensor as it is without the boost; the same object if nothing differs."""
        self._model, self._usual = model, usual
        self._looks = {True: 0, False: 0}
        self._places: dict[tuple[int, str], dict[str, Any]] = {}
        """The `__dict__` of a module, by its id and the attribute's name."""
        self._hooks: dict[int, tuple[dict[int, Any], Any, Any]] = {}
        """(hooks of a module, the program's own hook, ours around it), by torch's number of it."""

    def around(self, call: Callable[[], Any]) -> Any:
        """The call's result. Hooks within it, and attributes after it, have tensors as usual."""
        import torch

        training = self._model.training
        if torch.compiler.is_compiling():
            return call()
        if self._looks[training] >= LOOKS:
            output = self._with_hooks(call)
        else:
            self._looks[training] += 1
            self._find_hooks()
            before = {(id(owner), name): value for owner, name, value in attributes(self._model)}
            output = self._with_hooks(call)
            for owner, name, value in attributes(self._model):
                # A tensor that the program itself has put there in another format stays.
                own = is_tensor(value) and value is before.get((id(owner), name))
                if not own and self._changed(value) is not value:
                    self._places[id(owner), name] = owner
        for (_, name), owner in self._places.items():
            if name in owner:
                self._put_back(owner, name)
        return output

    def _find_hooks(self) -> None:
        for module in self._model.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for number, hook in hooks.items():
                    if number not in self._hooks:
                        self._hooks[number] = hooks, hook, self._hook(hook)

    def _hook(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """The program's hook with tensors as usual; what it writes to an output holds."""

        def as_usual(module: torch.nn.Module, *values: Any) -> Any:
            usual = [change(value, self._usual) for value in values]
            output = usual[-1]
            copied = is_tensor(output) and output is not values[-1]
            version = output._version if copied else 0
            result = hook(module, *usual)
            return output if result is None and copied and output._version > version else result

        return as_usual

    def _with_hooks(self, call: Callable[[], Any]) -> Any:
        """The call's result, with our hooks in place of the program's; those may be removed."""
        with contextlib.ExitStack() as stack:
            for number, (hooks, own, ours) in self._hooks.items():
                if hooks.get(number) is own:
                    hooks[number] = ours
                    stack.callback(_put_back_hook, hooks, number, own, ours)
            return call()

    def _put_back(self, owner: dict[str, Any], name: str) -> None:
        """Replace the tensors of an attribute; a list or dict stays the same object."""
        value = owner[name]
        if type(value) is list:
            value[:] = self._changed(value)
        elif type(value) is dict:
            value.update(self._changed(value))
        else:
            owner[name] = self._changed(value)

    def _changed(self, value: Any) -> Any:
        """The value with its tensors as usual, or the same object if all of them are.

        Nests in it are left alone: they may hold each other.
        """

        def usual(leaf: Any) -> Any:
            return self._usual(leaf) if is_tensor(leaf) else leaf

        return change(value, usual, lambda leaf: is_tensor(leaf) or leaf is not value)


def _put_back_hook(hooks: dict[int, Any], number: int, own: Any, ours: Any) -> None:
    if hooks.get(number) is ours:
        hooks[number] = own
