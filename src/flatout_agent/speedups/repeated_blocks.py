"""The repeated blocks of a model, which are recomputed, sharded, divided and compiled as units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

FEWEST_ALIKE = 3
"""With fewer blocks to serve, compiling one for all saves little."""
MOSTLY = 0.75
"""Share of the model's layers in the blocks: with less, too much of the model would not be
compiled."""


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model (transformer layers, residual blocks), in order, each once.

    Blocks are two or more modules of one class with submodules and parameters of their own, side by
    side in one parent. If such modules contain longer rows of such modules (stages of blocks,
    encoder and decoder stacks), the inner ones are the blocks.
    """
    rows: dict[Any, list[nn.Module]] = {}
    for child in model.children():
        rows.setdefault(_kind(child), []).append(child)
    blocks: list[nn.Module] = []
    for row in rows.values():
        inner = [repeated_blocks(module) for module in row]
        longest = max(len(nested) for nested in inner)
        outer = len(row) > 1 and any(row[0].children()) and any(True for _ in row[0].parameters())
        if outer and len(row) > longest and not (longest and _is_container(row[0])):
            blocks += row
        else:
            blocks += [block for nested in inner for block in nested]
    return list(dict.fromkeys(blocks))


def alike_blocks(model: nn.Module) -> list[list[nn.Module]]:
    """The repeated blocks in groups, each of at least three that the same compiled code can serve.

    Blocks of a group have one class, and parameters and buffers of the same names, shapes and
    dtypes.
    """
    groups: dict[Any, list[nn.Module]] = {}
    for block in repeated_blocks(model):
        groups.setdefault(_likeness(block), []).append(block)
    return [group for group in groups.values() if len(group) >= FEWEST_ALIKE]


def shared_blocks(model: nn.Module) -> list[list[nn.Module]]:
    """The groups of like blocks of a model that mostly consists of them; otherwise none."""
    groups = alike_blocks(model)
    return groups if mostly_in(groups, model) else []


def mostly_in(groups: list[list[nn.Module]], model: nn.Module) -> bool:
    """Whether the model consists mostly of these blocks."""
    layers = [module for module in model.modules() if not any(True for _ in module.children())]
    inside = {id(part) for group in groups for block in group for part in block.modules()}
    return bool(groups) and sum(id(layer) in inside for layer in layers) >= MOSTLY * len(layers)


def _likeness(block: nn.Module) -> Any:
    """The values in a block that the compiler takes for constants; rates may grow with depth
    (DropPath).
    """
    tensors = [*block.named_parameters(), *block.named_buffers()]
    fractions = [
        (part, name, value)
        for part, module in block.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, float)
    ]
    shapes = [(name, tensor.shape, tensor.dtype) for name, tensor in tensors]
    return type(block), tuple(shapes), tuple(fractions)


def _kind(module: nn.Module) -> Any:
    """The key under which modules are equivalent: the class, and for containers their contents."""
    if _is_container(module):
        return type(module), tuple(type(child) for child in module.children())
    return type(module)


def _is_container(module: nn.Module) -> bool:
    from torch import nn

    return isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
