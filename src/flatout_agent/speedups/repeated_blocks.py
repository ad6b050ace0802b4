"""The repeated blocks of a model: what is recomputed, sharded and divided as a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model (transformer layers, residual blocks), in order, each once.

    Blocks are two or more modules of one class with submodules and parameters of their own, side by
    side in one parent. Where such modules hold longer rows of such modules (stages of blocks,
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


def _kind(module: nn.Module) -> Any:
    """The key under which modules are equivalent: the class, for containers also their contents."""
    if _is_container(module):
        return type(module), tuple(type(child) for child in module.children())
    return type(module)


def _is_container(module: nn.Module) -> bool:
    from torch import nn

    return isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
