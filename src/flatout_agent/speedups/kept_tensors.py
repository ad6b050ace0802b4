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

from flatout_agent.speedups.channels_last import is_channels_last
from flatout_agent.speedups.nests import change, is_tensor
from flatout_agent.speedups.own_hooks import put_back

if TYPE_CHECKING:
    import torch

LOOKS = 3
"""Calls after which the attributes are known, in training and in evaluation."""
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
        self._hooks: list[tuple[dict[int, Any], bool]] = []
        """(hooks of a module by torch's numbers, whether they come before its call) ..."""
        self._hooks_until = -1
        """... and torch's next number when they were looked for."""
        self._ours: dict[tuple[int, int], tuple[Any, Any]] = {}
        """(a hook, ours around it), by the id of its module's hooks and torch's number of it."""

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

    def _with_hooks(self, call: Callable[[], Any]) -> Any:
        """The call's result, with our hooks around those that the modules have now."""
        self._find_hooks()
        if not self._hooks:
            return call()
        with contextlib.ExitStack() as stack:
            for hooks, before in self._hooks:
                for number, hook in list(hooks.items()):
                    if getattr(hook, "kept_by", None) is self:
                        continue  # the model calls itself
                    key = id(hooks), number
                    if key not in self._ours or self._ours[key][0] is not hook:
                        self._ours[key] = hook, self._hook(hook, before)
                    ours = hooks[number] = self._ours[key][1]
                    stack.callback(put_back, hooks, number, hook, ours)
            return call()

    def _find_hooks(self) -> None:
        """Look through the modules again if a hook was registered anywhere since."""
        from torch.utils.hooks import RemovableHandle

        if RemovableHandle.next_id != self._hooks_until:
            self._hooks_until = RemovableHandle.next_id
            self._ours = {}
            self._hooks = [
                (hooks, before)
                for module in self._model.modules()
                for hooks, before in (
                    (module._forward_pre_hooks, True),
                    (module._forward_hooks, False),
                )
                if hooks
            ]

    def _hook(self, hook: Callable[..., Any], before: bool) -> Callable[..., Any]:
        """The program's hook, which gets tensors as usual.

        Where it returns nothing, the call goes on with what it got: it may have written there, or
        have asked for a gradient.
        """

        def as_usual(module: torch.nn.Module, *values: Any) -> Any:
            changed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

            def usual(tensor: torch.Tensor) -> Any:
                found = self._usual(tensor)
                if found is not tensor:
                    changed[id(found)] = found, tensor
                return found

            def as_it_was(tensor: torch.Tensor) -> Any:
                return _like(changed[id(tensor)][1], tensor) if id(tensor) in changed else tensor

            given = [change(value, usual) for value in values]
            result = hook(module, *given)
            if result is not None or not changed:
                return result
            if not before:
                return change(given[-1], as_it_was)
            arguments = [change(value, as_it_was) for value in given]
            return arguments[0] if len(arguments) == 1 else tuple(arguments)

        vars(as_usual)["kept_by"] = self
        return as_usual

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


def _like(other: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the type and format of another."""
    import torch

    tensor = tensor.to(other.dtype)
    last = torch.channels_last
    return tensor.contiguous(memory_format=last) if is_channels_last(other) else tensor
