"""The parameters of a model by name, and an optimizer that follows them if they are replaced."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from flatout_train.errors import UsageError

_SHOWN = 3


def names_of(model: nn.Module) -> dict[int, str]:
    """Name of each parameter, by the identity of its tensor; the first one for tied parameters."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def check(optimizer: torch.optim.Optimizer, model: nn.Module, moves: bool) -> None:
    """Raise UsageError if the optimizer would hold parameters that the model no longer has.

    moves: whether the strategy replaces the model's parameters.
    """
    names = names_of(model)
    strangers = [
        tuple(parameter.shape)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if id(parameter) not in names
    ]
    if strangers:
        shown = ", ".join(map(str, strangers[:_SHOWN]))
        raise UsageError(
            f"the optimizer has {len(strangers)} parameters that are not the model's (of shape "
            f"{shown}): nothing would exchange their gradients. Make them parameters of the model"
        )
    if not moves:
        return
    if any(optimizer.state.values()):
        raise UsageError(
            "the optimizer has state already, of parameters that are about to be replaced: call "
            "flatout.parallelize before the first step, then load the state with its "
            "load_state_dict"
        )
    if holders := _holders(optimizer, set(names)):
        raise UsageError(
            f"{type(optimizer).__name__} keeps parameters in `{holders[0]}` beside its groups and "
            "would go on with the old ones: create it from the parameters of the model that "
            "flatout.parallelize returns"
        )


def point(optimizer: torch.optim.Optimizer, names: dict[int, str], model: nn.Module) -> None:
    """Replace the groups' parameters by those that the model now has under the same names.

    Those that this process no longer has (of another pipeline stage) are left out.
    """
    new = dict(model.named_parameters(remove_duplicate=False))
    for group in optimizer.param_groups:
        found = [new.get(names[id(parameter)]) for parameter in group["params"]]
        group["params"] = [parameter for parameter in found if parameter is not None]
    optimizer.state.clear()


def shared(model: nn.Module) -> dict[int, list[str]]:
    """Names of the parameters that occur in more than one place, by identity."""
    places: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    return {key: names for key, names in places.items() if len(names) > 1}


def self_contained(model: nn.Module, blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """The blocks that share no parameter with the rest of the model."""
    everywhere = {key: len(names) for key, names in shared(model).items()}
    found = []
    for block in blocks:
        inside: dict[int, int] = {}
        for _, parameter in block.named_parameters(remove_duplicate=False):
            inside[id(parameter)] = inside.get(id(parameter), 0) + 1
        if all(everywhere.get(key, count) == count for key, count in inside.items()):
            found.append(block)
    return found


def scalars(model: nn.Module) -> set[nn.Parameter]:
    """Parameters without a dimension, which cannot be sharded."""
    return {parameter for parameter in model.parameters() if parameter.dim() == 0}


def _holders(optimizer: torch.optim.Optimizer, known: set[int]) -> list[str]:
    """Attributes, other than groups and state, that hold parameters of the model."""

    def holds(value: object) -> bool:
        values = value if isinstance(value, list | tuple) else [value]
        return any(isinstance(item, Tensor) and id(item) in known for item in values)

    return [
        name
        for name, value in vars(optimizer).items()
        if name not in ("param_groups", "state") and holds(value)
    ]
