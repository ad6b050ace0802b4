"""Tensors that are made of the host's own values, by `torch.from_numpy` and its like.

A `Flow` passes them on. Where a line makes one of the same bytes in both steps, the host's work
that leads to it is the same, too: which lines that are, the program's text tells.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent import wire
from flatout_agent.watch import places
from flatout_agent.watch.profile.ast_slices import lines_leading_to
from flatout_agent.watch.profile.modes import without_modes
from flatout_agent.watch.tensors import readable

if TYPE_CHECKING:
    from flatout_agent.watch.profile.flow import FlowLine

MAKERS = ("from_numpy", "frombuffer", "as_tensor", "asarray", "tensor")
"""Functions of torch."""
LEAST_BYTES = 1024
"""Few bytes may be equal by chance."""
MOST = 4096
"""Tensors, and reads, that are noted."""
ROWS = 16


@dataclass(frozen=True, slots=True)
class FlowBirth:
    """One tensor made of the host's values."""

    step: int
    line: FlowLine
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    digest: int | None
    """None: its values cannot be compared, or say nothing."""


class FlowBirths:
    """Those of the counted steps."""

    def __init__(self) -> None:
        self.births: list[FlowBirth] = []
        self.read_at: set[FlowLine] = set()
        """Lines on which the program reads values that change."""
        self.overflow = False

    def looks_at(self, tensor: Any) -> bool:
        """Whether it is one that is noted."""
        self.overflow = self.overflow or len(self.births) >= MOST
        return type(tensor) is torch.Tensor and not self.overflow

    def born(
        self, step: int, chain: tuple[FlowLine, ...], tensor: torch.Tensor, digest: int | None
    ) -> None:
        """A tensor was made. digest: of its storage's bytes."""
        if not chain:
            return
        size = tensor.numel() * tensor.element_size()
        telling = digest is not None and size >= LEAST_BYTES and _differs(tensor)
        self.births.append(
            FlowBirth(
                step,
                chain[0],
                tuple(tensor.shape),
                str(tensor.dtype).removeprefix("torch."),
                size,
                digest if telling else None,
            )
        )

    def leaves(self, chain: tuple[FlowLine, ...]) -> None:
        """The program reads a value that changes, here."""
        if len(self.read_at) < MOST:
            self.read_at.update(chain[:1])


def _differs(tensor: torch.Tensor) -> bool:
    """Whether not all its numbers are equal: a mask that nothing has met yet says nothing."""
    if tensor.layout is not torch.strided or not readable(tensor):
        return False
    with without_modes(), torch.no_grad():
        return bool((tensor != tensor.reshape(-1)[0]).any())


def host_constants(births: FlowBirths) -> tuple[wire.HostConstantSeen, ...]:
    """The tensors that lines make of the same bytes in both steps, with the lines leading there."""
    if births.overflow:
        return ()
    by_line: dict[FlowLine, list[FlowBirth]] = defaultdict(list)
    for birth in births.births:
        by_line[birth.line].append(birth)
    constant = [line for line, members in by_line.items() if _constant(members)]
    changing = set(by_line) - set(constant)
    varying = {place for line in changing for place in _leading(line)}
    read = {(line.file, line.number) for line in births.read_at}
    groups: dict[tuple[str, str], list[FlowLine]] = defaultdict(list)
    for line in constant:
        groups[line.file, line.function].append(line)
    rows = []
    for lines in groups.values():
        leading = {place for line in lines for place in _leading(line)}
        if leading and leading.isdisjoint(read):
            rows.append(_row([by_line[line] for line in lines], leading - varying))
    return tuple(sorted(rows, key=lambda row: -row.bytes)[:ROWS])


def _constant(births: Iterable[FlowBirth]) -> bool:
    """Whether two steps have made the same ones."""
    made: list[Counter[tuple[object, ...]]] = [Counter(), Counter()]
    for birth in births:
        if birth.digest is None or birth.step > 1:
            return False
        made[birth.step][birth.shape, birth.dtype, birth.digest] += 1
    return bool(made[0]) and made[0] == made[1]


def _leading(line: FlowLine) -> set[tuple[str, int]]:
    return {(line.file, number) for number in lines_leading_to(line.file, line.number)}


def _row(
    births: list[list[FlowBirth]], leading: Iterable[tuple[str, int]]
) -> wire.HostConstantSeen:
    first = [birth for members in births for birth in members if birth.step == 0]
    largest = max(first, key=lambda birth: birth.bytes)
    where = f"{places.display(largest.line.file)}:{largest.line.number}"
    return wire.HostConstantSeen(
        where=where,
        lines=tuple(f"{places.display(file)}:{number}" for file, number in sorted(leading)),
        function=largest.line.function,
        calls=max(len([b for b in members if b.step == 0]) for members in births),
        shape="x".join(map(str, largest.shape)),
        dtype=largest.dtype,
        bytes=sum(birth.bytes for birth in first),
    )
