"""Runs a model with constants in place of its random numbers.

So the whole batch and the ranks' rows can be compared although the model has dropout. torch's own
tag identifies operators that draw random numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LoudOperator(Exception):  # noqa: N818 - a decision with its reason, not an error
    """An operator draws random numbers in a way unknown here."""


class Quiet(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes random operators return their mean, or always the same."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random = False
        """Whether there was a random operator."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        drawing = torch.Tag.nondeterministic_seeded in func.tags
        if not drawing or (name in RECURRENT and not _drops(func, args, kwargs)):
            return func(*args, **kwargs)
        self.random = True
        if name.startswith("_scaled_dot_product"):
            kwargs = {key: value for key, value in kwargs.items() if key != "dropout_p"}
            position = [argument.name for argument in func._schema.arguments].index("dropout_p")
            args = tuple(0.0 if index == position else value for index, value in enumerate(args))
            return func(*args, **kwargs)
        constant = CONSTANTS.get(name)
        if constant is None:
            raise LoudOperator(name)
        return constant(func, args, kwargs)


def _drops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a recurrent layer's call applies dropout."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return bool(given["train"]) and given["dropout"] != 0.0


def _native_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)


def _bernoulli_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    probability = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    if isinstance(probability, torch.Tensor):
        return args[0].copy_(probability)
    return args[0].fill_(probability)


def _bernoulli(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].clone() if func._overloadname != "p" else torch.full_like(args[0], args[1])


def _normal_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].fill_(args[1] if len(args) > 1 else kwargs.get("mean", 0.0))


def _uniform_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    low = args[1] if len(args) > 1 else kwargs.get("from", 0.0)
    high = args[2] if len(args) > 2 else kwargs.get("to", 1.0)
    return args[0].fill_((low + high) / 2)


def _lowest_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].fill_(args[1] if len(args) > 2 else 0)


def _filled(value: float) -> Any:
    def fill(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kwargs = {name: given for name, given in kwargs.items() if name != "generator"}
        like = isinstance(args[0], torch.Tensor)
        return (torch.full_like if like else torch.full)(args[0], value, **kwargs)

    return fill


def _lowest(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs = {"dtype": torch.int64, **kwargs}
    low, size = (0, args[1]) if isinstance(args[1], (list, tuple)) else (args[0], args[2])
    return _filled(low)(func, (size,), kwargs)


def _normal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], torch.Tensor):
        return args[0].clone()
    if isinstance(args[1], torch.Tensor):
        return torch.full_like(args[1], args[0])
    return _filled(args[0])(func, (args[2],), kwargs)


def _exponential_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].fill_(1.0)


def _in_order(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs = {name: given for name, given in kwargs.items() if name != "generator"}
    return torch.arange(args[0], **kwargs)


def _likeliest(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].topk(args[1], dim=-1).indices


RECURRENT = ("_cudnn_rnn", "miopen_rnn")
"""LSTM, GRU and RNN on a GPU. Their tag holds for dropout alone, and that is drawn from a state of
the library's own, which no generator reaches."""
CONSTANTS = {
    "native_dropout": _native_dropout,
    "bernoulli_": _bernoulli_,
    "bernoulli": _bernoulli,
    "normal_": _normal_,
    "uniform_": _uniform_,
    "random_": _lowest_,
    "randn": _filled(0.0),
    "randn_like": _filled(0.0),
    "rand": _filled(0.5),
    "rand_like": _filled(0.5),
    "randint": _lowest,
    "normal": _normal,
    "exponential_": _exponential_,
    "randperm": _in_order,
    "multinomial": _likeliest,
}
