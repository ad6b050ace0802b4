"""What an operator's schema says about its arguments and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

FROM_NOTHING = frozenset(
    f"aten.{name}"
    for name in (
        "ones_like", "zeros_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
        "new_empty", "new_empty_strided",
    )
)  # fmt: skip
"""Operators that use shape and dtype of their argument, not its values."""
UNWRITTEN = frozenset(name for name in FROM_NOTHING if "empty" in name) | {
    f"aten.{name}" for name in ("empty", "empty_strided", "empty_permuted")
}
"""Operators that allocate memory for others to write to."""
OVERWRITING = frozenset(f"aten.{name}" for name in ("copy_", "fill_", "zero_"))
"""Operators that overwrite their target, or a part of it, without reading it."""
NUMBERS = frozenset(("aten._local_scalar_dense", "aten.item", "aten.is_nonzero"))
"""Operators that give the program the number in a tensor; all but the first only in inference
mode."""
HANDING = NUMBERS | {"aten.equal"}
"""Operators that give the program a value."""
LIFTING = ("aten.lift_fresh",)
"""The operator that passes on a tensor made from Python's values."""
CLEARING = ("aten.zero_", "aten._foreach_zero_", "aten.fill_")
"""Operators that set gradients to zero."""
KNOWN = ("aten", "prims", "torchvision")
"""Namespaces whose operators do only what their schema says."""
COLLECTIVE = "c10d."
"""Operators that write to their arguments although their schema does not say so."""


@dataclass(frozen=True)
class OperatorSchema:
    """The properties of an operator that are needed for each call."""

    name: str
    written: frozenset[int | str]
    random: bool
    read: bool
    view: bool = False
    """Whether it makes no storage, writes to none, and gives nothing to the program."""

    @property
    def tells_all(self) -> bool:
        """Whether its result depends only on its arguments, apart from chance."""
        return not self.read or _namespace(self.name) in KNOWN


def schema(func: Any) -> OperatorSchema:
    """The schema of an operator as a dispatch mode gets it."""
    stated = getattr(func, "_schema", None)
    if stated is None:  # a higher-order operator
        return OperatorSchema(str(func), frozenset(), random=True, read=True)
    packet = str(getattr(func, "_overloadpacket", func))
    written: set[int | str] = set()
    for position, argument in enumerate(stated.arguments):
        if packet.startswith(COLLECTIVE) or (
            argument.alias_info is not None and argument.alias_info.is_write
        ):
            written |= {position, argument.name}
    tags = set(getattr(func, "tags", ()))
    reading = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    read = (bool(tags & reading) and packet != "aten._local_scalar_dense") or (
        _namespace(packet) not in KNOWN
    )
    aliases = [result.alias_info is not None for result in stated.returns]
    return OperatorSchema(
        packet,
        frozenset(written),
        torch.Tag.nondeterministic_seeded in tags,
        read,
        view=bool(aliases) and all(aliases) and not (written or read) and packet not in LIFTING,
    )


def _namespace(name: str) -> str:
    """The namespace of a name, such as aten for aten.mm."""
    return name.partition(".")[0]
