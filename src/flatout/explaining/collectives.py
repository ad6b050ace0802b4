"""What each rank was doing when a collective timed out, and what that shows about the cause.

Each rank's watchdog prints the operation that waited, its number in the order of the group, and how
far the rank had got. Compared over the ranks, these show mismatched collectives, a rank that is
behind, a rank that is missing, or a network that does not pass data.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flatout.explaining import lines
from flatout.nouns.signature import Wording

RANKS_SHOWN = 8
BETWEEN_TWO = ("SEND", "RECV", "COALESCED")
"""Operations between two ranks, which are numbered differently."""
_RANK = re.compile(r"\bRank (\d+)\]", re.IGNORECASE)
_GROUP = re.compile(r"\[PG (?:ID )?(\d+|\w+)(?: PG GUID \S{1,60})?")
_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<operation>\w+)"
    r"(?:, NumelIn=(?P<elements>\d+))?(?:, NumelOut=\d+)?"
)
_TIMED_OUT = re.compile(r"Timeout at NCCL work: (\d+)")
_PROGRESS = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), "
    r"last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_WORLD = re.compile(
    r"(?:world_size|WORLD_SIZE|nranks)['\"]?\s?[=: ]\s?['\"]?(\d+)|MEMBER: \d+/(\d+)"
)

WAITED = Wording("When it timed out, {ranks}.", "超时时，{ranks}。")
RANK_WAITED = Wording(
    "rank {rank} waited in {operation} ({number})", "rank {rank} 在等待 {operation}（{number}）"
)
RANKS_WAITED = Wording(
    "ranks {ranks} waited in {operation} ({number})", "rank {ranks} 在等待 {operation}（{number}）"
)
MISMATCH = Wording(
    "The ranks called different collectives at the same place: a branch that only some ranks take, "
    "or another order of calls.",
    "各 rank 在同一位置调用了不同的集合通信：某个分支只有部分 rank 走，或调用顺序不同。",
)
SIZES = Wording(
    "The same collective has {sizes} elements on different ranks: shapes differ between ranks.",
    "同一集合通信在不同 rank 上的元素数不同（{sizes}）：各 rank 的形状不一致。",
)
BEHIND = Wording(
    "Rank {rank} is behind: it had called {number} collectives, the others {most}. It skipped one, "
    "or is slow: look at what it did.",
    "rank {rank} 落后：它调用了 {number} 次集合通信，其他 rank 为 {most} 次。"
    "它漏掉了一次或较慢：请看它在做什么。",
)
ABSENT = Wording(
    "Rank {ranks} reported no time-out, and {count} others did: it had died, or stood still before "
    "this collective. Its own log has the cause.",
    "rank {ranks} 没有报告超时，而其他 {count} 个 rank 报告了：它已退出，"
    "或在此集合通信之前卡住。原因在它自己的日志中。",
)
TOGETHER = Wording(
    "All {count} ranks waited in the same collective: none was missing. The data does not pass "
    "between them: links (P2P, InfiniBand), the network interface, or a GPU.",
    "全部 {count} 个 rank 都在等待同一集合通信，没有缺席：数据无法在它们之间传输，"
    "请检查链路（P2P、InfiniBand）、网卡或 GPU。",
)
ALONE = Wording(
    "Only rank {rank} is in this text: what the others were doing is missing. Give flatout explain "
    "the logs of all ranks (torchrun --log-dir logs --redirects 3).",
    "文中只有 rank {rank}：缺少其他 rank 的信息。请把所有 rank 的日志交给 flatout explain"
    "（torchrun --log-dir logs --redirects 3）。",
)
NEVER = Wording(
    "No collective of the group was ever complete: the ranks cannot reach each other, or one never "
    "came.",
    "该组从未完成任何集合通信：rank 之间不通，或某个 rank 从未到达。",
)


@dataclass(frozen=True)
class RankState:
    """How far one rank had got in the default group."""

    rank: int
    operation: str = ""
    """Empty if no line of this rank, or of another at the same place, names it."""
    number: int | None = None
    """Number of the operation in the order of the group."""
    elements: int | None = None
    group: str = ""
    """The process group by the watchdog's number; empty if unknown."""
    enqueued: int | None = None
    completed: int | None = None


def states(text: str) -> list[RankState]:
    """The state of each rank whose watchdog printed something, by rank."""
    ranks: dict[int, RankState] = {}
    groups: dict[int, str] = {}
    for row in text.splitlines():
        if "NCCL" not in row and "last enqueued" not in row:
            continue
        match = _RANK.search(row)
        rank = int(match[1]) if match else lines.rank(row)
        work, progress = _WORK.search(row), _PROGRESS.search(row)
        timed_out = _TIMED_OUT.search(row)
        if rank is None or (work is None and progress is None and timed_out is None):
            continue
        group = match[1] if (match := _GROUP.search(row)) else ""
        if group and groups.get(rank, group) != group:
            continue  # another group of the same rank
        if group:
            groups[rank] = group
        state = ranks.get(rank, RankState(rank))
        # The first message of each kind counts: later ones repeat it.
        if work is not None and not state.operation:
            elements = int(work["elements"]) if work["elements"] else None
            number = int(work["number"])
            state = replace(state, operation=work["operation"], number=number, elements=elements)
        if progress is not None and state.enqueued is None:
            enqueued, completed = int(progress["enqueued"]), int(progress["completed"])
            state = replace(state, enqueued=enqueued, completed=completed)
        if timed_out is not None and state.number is None:
            state = replace(state, number=int(timed_out[1]))
        ranks[rank] = replace(state, group=groups.get(rank, ""))
    # A rank known only by a number gets the operation that others name at that place.
    found = [ranks[rank] for rank in sorted(ranks)]
    places: dict[tuple[str, int | None], set[tuple[str, int | None]]] = {}
    for state in found:
        if state.operation:
            place = places.setdefault((state.group, state.number), set())
            place.add((state.operation, state.elements))
    for index, state in enumerate(found):
        names = places.get((state.group, state.number), set())
        if not state.operation and len(names) == 1:
            operation, elements = next(iter(names))
            found[index] = replace(state, operation=operation, elements=elements)
    return found


def observations(text: str) -> tuple[Wording, ...]:
    """What the ranks in a text were doing when a collective timed out, and what follows."""
    found = [state for state in states(text) if state.number is not None]
    if not found:
        return ()
    groups: dict[tuple[str, int | None], list[int]] = {}
    for state in found:
        groups.setdefault((state.operation, state.number), []).append(state.rank)
    parts = []
    for (operation, number), ranks in groups.items():
        wording = RANK_WAITED if len(ranks) == 1 else RANKS_WAITED
        names = ", ".join(map(str, ranks[:RANKS_SHOWN])) + (", ..." if ranks[RANKS_SHOWN:] else "")
        values = {"operation": operation or "a collective", "number": number}
        parts.append(wording.filled(rank=names, ranks=names, **values))
    english, chinese = ", ".join(part.en for part in parts), "，".join(part.zh for part in parts)
    said = [Wording(WAITED.en.format(ranks=english), WAITED.zh.format(ranks=chinese))]
    sizes = [int(first or second) for first, second in _WORLD.findall(text)]
    world = max(sizes) if sizes else None
    if len(found) == 1 and world != 1:
        said.append(ALONE.filled(rank=found[0].rank))
    said += _compared(found, world)
    if all(state.completed is not None and state.completed <= 0 for state in found):
        said.append(NEVER)
    return tuple(said)


def _compared(found: Sequence[RankState], world: int | None) -> Iterator[Wording]:
    pairs = any(state.operation in BETWEEN_TWO for state in found)
    if pairs or len({state.group for state in found}) > 1:
        return  # not every rank has to take part
    numbers = Counter(state.number for state in found)
    seen = {state.rank for state in found}
    least = max(seen) + 1 if len(seen) > 1 else 0  # at least so many ranks exist
    absent = sorted(set(range(max(world or 0, least))) - seen)
    known = [state for state in found if state.operation]
    if len(numbers) == 1 and len({state.operation for state in known}) > 1:
        yield MISMATCH
    elif len(numbers) == 1 and len(sizes := {state.elements for state in known}) > 1:
        yield SIZES.filled(sizes=" / ".join(str(size) for size in sizes))
    elif len(numbers) > 1:
        most = max(state.number or 0 for state in found)
        behind = min(found, key=lambda state: state.number or 0)
        yield BEHIND.filled(rank=behind.rank, number=behind.number, most=most)
    elif absent:
        names = ", ".join(map(str, absent[:RANKS_SHOWN]))
        yield ABSENT.filled(ranks=names, count=len(found))
    elif world is not None and len(found) == world > 1:
        yield TOGETHER.filled(count=world)
