"""What the flight recorder's dumps show: which rank missed which collective, and where it was.

The likely cause comes from the signatures, which know the words of torch's analyser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.nouns.flight_record import FlightCall, FlightRecord, StackLine, UnlikeCall
from flatout.nouns.signature import Wording

RANKS_SHOWN = 8
LIBRARIES = ("site-packages", "dist-packages", "<frozen", "/torch/")
"""Parts of paths of code that is not the user's."""

MISSING = Wording(
    "Rank {ranks} never called {operation} number {number} of group {group}; others waited in it "
    "at {where}.",
    "rank {ranks} 从未调用组 {group} 的第 {number} 次 {operation}；其他 rank 在 {where} 等待它。",
)
INSTEAD = Wording(
    "At call number {number} of group {group}, where others called {operation} at {where}, rank "
    "{rank} called {other} with {sizes} at {there}.",
    "在组 {group} 的第 {number} 次调用处，其他 rank 在 {where} 调用 {operation}，而 rank {rank} 在 "
    "{there} 调用了 {other}（{sizes}）。",
)
LAST = Wording(
    "The last call of rank {rank} was {operation} number {number}, {state}, at {where}.",
    "rank {rank} 的最后一次调用是第 {number} 次 {operation}（{state}），位于 {where}。",
)
NO_DUMP = Wording(
    "There is no dump of rank {ranks}: it had ended, or its dump is on another machine.",
    "缺少 rank {ranks} 的 dump：它已退出，或其 dump 在另一台机器上。",
)
ALIKE = Wording(
    "All ranks called the same collectives. If one timed out, its data did not pass, or a rank was "
    "only late.",
    "所有 rank 调用的集合通信一致。若发生超时，则是数据未能传输，或某个 rank 只是较慢。",
)

SAME = "flight recorder: the ranks called the same collectives\n"
"""Added because torch's analyser prints nothing if it finds nothing."""


def text(record: FlightRecord) -> str:
    """The words of torch's analyser, which the signatures know."""
    return record.text or SAME


def observations(record: FlightRecord) -> tuple[Wording, ...]:
    """What the dumps of one job show, the first difference first."""
    return tuple(_observations(record))


def _observations(record: FlightRecord) -> Iterator[Wording]:
    unlike = record.unlike[:1]  # later differences follow from the first
    for call in unlike:
        yield from _of(call)
    missing = {rank for call in unlike for rank in call.missing}
    named = missing | {other.rank for call in unlike for other in call.others}
    for last in record.last:
        if last.rank in missing or (not named and len(record.last) <= RANKS_SHOWN):
            yield _last(last)
    absent = sorted(set(range(record.world)) - set(record.ranks))
    if absent:
        yield _filled(NO_DUMP, ranks=_ranks(absent))
    if not unlike and not absent:
        yield ALIKE


def _of(call: UnlikeCall) -> Iterator[Wording]:
    group, where = _group(call.group), _where(call.stack)
    about = {"operation": call.operation, "number": call.number, "group": group, "where": where}
    if call.missing:
        yield _filled(MISSING, ranks=_ranks(call.missing), **about)
    for other in call.others[:RANKS_SHOWN]:
        there = _where(other.stack)
        yield _filled(
            INSTEAD,
            rank=other.rank,
            other=other.operation,
            sizes=other.sizes,
            there=there,
            **about,
        )


def _last(call: FlightCall) -> Wording:
    return _filled(
        LAST,
        rank=call.rank,
        operation=call.operation,
        number=call.number,
        state=call.state,
        where=_where(call.stack),
    )


def _group(text: str) -> str:
    """default_pg of 0:default_pg."""
    name, _, description = text.partition(":")
    return description or name


def _where(stack: Sequence[StackLine]) -> str:
    """The user's innermost line, else the innermost line."""
    own = [line for line in stack if not any(part in line[0] for part in LIBRARIES)]
    if not stack:
        return "?"
    file, number, function = (own or stack)[0]
    return f"{file}:{number} ({function})"


def _ranks(ranks: Sequence[int]) -> str:
    more = ", ..." if len(ranks) > RANKS_SHOWN else ""
    return ", ".join(map(str, ranks[:RANKS_SHOWN])) + more


def _filled(wording: Wording, **values: object) -> Wording:
    return Wording(wording.en.format(**values), wording.zh.format(**values))
