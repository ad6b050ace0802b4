"""Tensors made from the same values of the host in both steps.

If a line makes one from the same bytes in both steps, the host's work that leads to it is also the
same. The program's source shows which lines that is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from flatout_agent import wire
from flatout_agent.watch import places
from flatout_agent.watch.profile.ast_slices import lines_leading_to
from flatout_agent.watch.profile.flow.births import FlowBirth, FlowBirths
from flatout_agent.watch.profile.flow.records import FlowLine

MOST = 16
"""The most rows reported."""


def host_constants(births: FlowBirths) -> tuple[wire.HostConstantSeen, ...]:
    """The tensors that lines make from the same bytes in both steps, with the lines
    leading there.
    """
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
    return tuple(sorted(rows, key=lambda row: -row.bytes)[:MOST])


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
    return wire.HostConstantSeen(
        where=str(largest.line),
        lines=tuple(f"{places.display(file)}:{number}" for file, number in sorted(leading)),
        function=largest.line.function,
        calls=max(len([b for b in members if b.step == 0]) for members in births),
        shape="x".join(map(str, largest.shape)),
        dtype=largest.dtype,
        bytes=sum(birth.bytes for birth in first),
    )
