"""Finds the lines of one step's update in a program without an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.watch import places
from flatout_agent.watch.profile.modes import StepMode
from flatout_agent.watch.profile.storages import past_overrides, storage_of
from flatout_agent.watch.tensors import tensors_in

MOST_LINES = 40
MOST_OPERATORS = 100_000
"""The most operators of a step; for a longer one no line is reported."""

Weights = Callable[[], Iterable[torch.Tensor]]


@dataclass(frozen=True)
class _Operator:
    """An operator that may be part of the update."""

    where: str
    """The line, or empty if it is part of a backward pass."""
    function: tuple[str, str]
    """File and name of the calling function, not counting comprehensions."""
    weights: set[int]
    """Storages of the weights that it changes."""
    made: set[int]
    """Storages of its results, except those of its inputs."""


class UpdateLines(StepMode):
    """Watches the operators of one step, from `start` to `end`."""

    def __init__(self, weights: Weights, inside_backward: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._weights, self._inside_backward = weights, inside_backward
        self._before: set[int] = set()
        self._operators: list[_Operator] = []
        self._failed = False

    @classmethod
    def start(cls, weights: Weights, inside_backward: Callable[[], bool]) -> UpdateLines:
        """Begin to watch."""
        mode = cls(weights, inside_backward)
        mode._before = _storages(weights())
        mode.enter()
        return mode

    def end(self) -> wire.UpdateSeen | None:
        """The lines, or None if no operator that changes weights was seen."""
        self.leave()
        return None if self._failed else self._seen()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self._failed:
            try:
                with past_overrides():
                    self._note(func, args, kwargs, out, sys._getframe(1))
            except Exception:
                self._failed = True  # no line is better than a wrong one
            if len(self._operators) > MOST_OPERATORS:
                self._failed, self._operators = True, []
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any, caller: Any) -> None:
        passing_back = self._inside_backward()
        changed = _storages(_written(func, args, kwargs)) & self._before
        frame = places.user_frame(caller)
        if frame is None or (passing_back and not changed):
            if passing_back:
                self._operators.append(_Operator("", ("", ""), set(), set()))
            return
        made = _storages(tensors_in(out)) - _storages(tensors_in((args, kwargs)))
        where = places.location(frame)
        # Comprehensions and lambdas belong to the enclosing function.
        code = frame.f_code
        while code.co_name.startswith("<") and code.co_name != "<module>":
            outer = places.user_frame(frame.f_back)
            if outer is None or outer.f_code.co_filename != code.co_filename:
                break
            frame, code = outer, outer.f_code
        function = code.co_filename, code.co_name
        self._operators.append(_Operator(where, function, changed, made))

    def _seen(self) -> wire.UpdateSeen | None:
        anew = _storages(self._weights()) - self._before
        # Memory is reused: the last writer has made the weight.
        made_by = {
            storage: at
            for at, operator in enumerate(self._operators)
            for storage in operator.made & anew
        }
        changes = sorted(
            {at for at, operator in enumerate(self._operators) if operator.weights}
            | set(made_by.values())
        )
        if not changes:
            return None
        last_backward = max(
            (at for at, operator in enumerate(self._operators) if not operator.where), default=-1
        )
        functions = {self._operators[at].function for at in changes}
        update = [
            operator
            for at, operator in enumerate(self._operators[: changes[-1] + 1])
            if at in changes or (at > last_backward and operator.function in functions)
        ]
        tensors = set(made_by).union(*(self._operators[at].weights for at in changes))
        lines = dict.fromkeys(operator.where for operator in update)
        return wire.UpdateSeen(
            where=self._operators[changes[0]].where,
            function=self._operators[changes[0]].function[1],
            lines=tuple(lines)[:MOST_LINES],
            tensors=len(tensors),
            operators=len(update),
        )


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The arguments that an operator changes in place."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from tensors_in([value])


def _storages(tensors: Iterable[torch.Tensor]) -> set[int]:
    """The addresses of their memory; tensors without any are left out."""
    return {_storage(tensor) for tensor in tensors} - {0}


def _storage(tensor: torch.Tensor) -> int:
    try:
        return int(storage_of(tensor).data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0
