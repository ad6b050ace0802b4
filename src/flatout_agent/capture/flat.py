"""A model with only tensors as inputs and outputs: the rest of its call is part of the module."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution

from flatout_agent.capture.calls import SeenCall
from flatout_agent.capture.refusal import CannotCapture
from flatout_agent.speedups import nests

LEFT_OUT = "outputs without rows are left out"
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, range, slice)


@dataclass(frozen=True)
class Slot:
    """The place of an input in a call's nest."""

    index: int


@dataclass(frozen=True)
class LabelStandIn:
    """Zeros that replace an input that only the loss reads."""

    dtype: torch.dtype
    sizes: tuple[tuple[int, int] | int, ...]
    """Each size is a number, or (input, dimension) from which it is taken."""

    def of(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        sizes = [s if isinstance(s, int) else inputs[s[0]].shape[s[1]] for s in self.sizes]
        return torch.zeros(sizes, dtype=self.dtype)


@dataclass(frozen=True)
class Template:
    """A call whose tensors have been replaced by slots."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    """Names of the inputs, by their slots."""


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def tensors(call: SeenCall) -> tuple[torch.Tensor, ...]:
    """Its tensors in the order of their slots."""
    return tuple(nests.leaves((call.args, call.kwargs), is_tensor))


def filled(nest: Any, inputs: Sequence[torch.Tensor]) -> Any:
    """A call's nest with its inputs in the slots, and replacements for others."""

    def fill(value: Slot | LabelStandIn) -> torch.Tensor:
        return inputs[value.index] if isinstance(value, Slot) else value.of(inputs)

    return nests.change(nest, fill, lambda value: isinstance(value, Slot | LabelStandIn))


def template(model: nn.Module, call: SeenCall) -> Template:
    """The call with slots, which are named as the model's forward names its arguments."""
    names = positional_names(model, len(call.args))
    named = [*zip(names, call.args, strict=True), *call.kwargs.items()]
    paths = [path for name, value in named for path, _ in nests.paths(value, name, is_tensor)]
    count = iter(range(len(paths)))
    args, kwargs = nests.change(
        (call.args, call.kwargs), lambda tensor: Slot(next(count)), is_tensor
    )
    return Template(args, kwargs, _unique(paths))


def signature(call: SeenCall) -> tuple[Any, ...]:
    """The signature shared by calls that one template serves: kinds of tensors, and values of the
    rest.
    """
    return tuple(_signed((call.args, call.kwargs)))


def _signed(nest: Any, path: tuple[Any, ...] = ()) -> Iterator[Any]:
    if is_tensor(nest):
        yield path, str(nest.dtype), nest.dim()
        return
    pairs = nests.members(nest)
    if pairs is None:
        yield path, repr(nest) if isinstance(nest, PLAIN) else type(nest).__name__
        return
    yield path, type(nest).__name__, len(pairs)
    for key, member in pairs:
        yield from _signed(member, (*path, key))


def odd_objects(nest: Any) -> Iterator[Any]:
    """Arguments that are neither tensors nor plain values, and hold hidden tensors."""
    if is_tensor(nest) or isinstance(nest, PLAIN):
        return
    pairs = nests.members(nest)
    if pairs is not None:
        for _, member in pairs:
            yield from odd_objects(member)
    elif any(is_tensor(value) for value in getattr(nest, "__dict__", {}).values()):
        yield nest


def parameters(model: nn.Module) -> dict[str, inspect.Parameter]:
    """The parameters of the model's forward; empty if they cannot be read."""
    try:
        return dict(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return {}


def positional_names(model: nn.Module, count: int) -> list[str]:
    """The names of forward's first `count` arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [name for name, item in parameters(model).items() if item.kind in kinds]
    rest = ["input" if count == 1 else f"input_{place}" for place in range(count)]
    return (named + rest[len(named) :])[:count]


def _unique(paths: Sequence[str]) -> tuple[str, ...]:
    """Unique Python names from paths such as `batch['ids'][0]`."""
    names: list[str] = []
    for path in paths:
        name = re.sub(r"\W+", "_", path).strip("_") or "input"
        if name[0].isdigit() or keyword.iskeyword(name) or name == "self":
            name = f"input_{name}"
        while name in names:
            name += "_"
        names.append(name)
    return tuple(names)


class FlatModel(nn.Module):
    """forward(*inputs) -> tuple of tensors."""

    def __init__(self, model: nn.Module, call: Template) -> None:
        super().__init__()
        self.model = model
        self._template = call
        self.outputs: tuple[tuple[str, str], ...] | None = None
        """(path, name) of the outputs, or None for all tensors, by their paths."""
        self.copied: frozenset[int] = frozenset()
        """Inputs that the model writes into; it gets copies of them."""
        self.has_loss = False
        """Whether the model computes a loss when given labels."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        named = [inspect.Parameter(name, kind) for name in call.names]

        def forward(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.run(*inputs)

        forward.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        self.__dict__["forward"] = forward  # torch.export names inputs by it

    @property
    def input_names(self) -> tuple[str, ...]:
        return self._template.names

    def answer(self, *inputs: torch.Tensor) -> Any:
        """The model's own result."""
        given = [
            tensor.clone() if place in self.copied else tensor
            for place, tensor in enumerate(inputs)
        ]
        args, kwargs = filled((self._template.args, self._template.kwargs), given)
        return self.model(*args, **kwargs)

    def run(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = named_outputs(self.answer(*inputs))
        if self.outputs is None:
            return tuple(found.values())
        return tuple(found[path] for path, _ in self.outputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.outputs or ())


def named_outputs(answer: Any) -> dict[str, torch.Tensor]:
    """The tensors in a model's result, by path; for a distribution, its parameters."""
    plain = nests.change(answer, _parts, lambda value: isinstance(value, Distribution))
    return dict(nests.paths(plain, "output", is_tensor))


def _parts(distribution: Distribution) -> dict[str, torch.Tensor]:
    own = vars(distribution)
    names = (name.removeprefix("_") for name in distribution.arg_constraints)
    return {name: own[name] for name in names if is_tensor(own.get(name))}


def choose_outputs(
    answer: Any, scalars_too: bool = False
) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """(path, name) of the outputs to keep, and notes on those that are left out.

    Numbers are usually a loss or a statistic of the batch, so they are no outputs. Raises
    CannotCapture if there is no tensor at all.
    """
    found = named_outputs(answer)
    if not found:
        kind = type(answer).__name__
        raise CannotCapture(
            f"the model returns no tensor but {kind}",
            "return tensors from forward (alone, in a tuple or a dict), and turn them into other "
            "objects after the call",
        )
    kept = {path: tensor for path, tensor in found.items() if tensor.dim() or scalars_too}
    scalars = [path for path in found if path not in kept]
    inner = [path.removeprefix("output") for path in kept]
    names = _unique([_output_name(path, place, len(kept)) for place, path in enumerate(inner)])
    notes = [f"{LEFT_OUT}: {', '.join(scalars)}"] if scalars else []
    return tuple(zip(kept, names, strict=True)), notes


def _output_name(path: str, place: int, count: int) -> str:
    if not path:
        return "output"
    if re.fullmatch(r"\[\d+\]", path):
        return f"output_{place}" if count > 1 else "output"
    return f"output{path}" if path[1:2].isdigit() else path
