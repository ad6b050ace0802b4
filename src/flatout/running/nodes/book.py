"""What node 0 knows of all nodes and concludes from it: who may take part, who failed first.

A rank that fails is reported by its own node. A node is gone if its connection breaks or nothing is
heard of it.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter

from flatout.nouns.decoding import decode
from flatout.nouns.nodes import NodeVerdict, StandStill
from flatout.nouns.ranks import RankEnding, RankFailure
from flatout.running.nodes import connections
from flatout.running.nodes.connections import Message, NodeLimits, NodeLines
from flatout_agent import wire

MOST_RANKS = 1024
"""On one node."""
LATE = "the job has started without it"
"""This is no error yet: an engine that restarted this node may be about to restart all."""
MOST_NAME = 253
"""Characters of a host name."""


class NodeEntry:
    """What the leader knows of one node."""

    def __init__(self, index: int, hello: Message, lines: NodeLines) -> None:
        self.index = index
        self.lines: NodeLines | None = lines
        self.ranks = int(hello["ranks"])
        self.name = str(hello["name"])[:MOST_NAME]
        self.program = str(hello["program"])
        self.native: object = hello.get("native")
        """What it has seen of the program; what node 0 has seen counts."""
        self.heard_at = time.monotonic()
        self.step: int | None = None
        self.still: StandStill | None = None
        self.ended: int | None = None
        self.ended_at = 0.0
        self.ready = True
        """Whether it can start its ranks."""


class NodeBook:
    """All nodes of a job."""

    def __init__(self, count: int, limits: NodeLimits) -> None:
        self.count, self._limits = count, limits
        self.nodes: dict[int, NodeEntry] = {}
        self.gathering = True
        """Whether nodes may still come."""
        self._failures: list[tuple[float, RankFailure, str, bool]] = []
        """(when, what, its traceback, whether it is only the consequence of another failure)."""
        self._refused: tuple[str, str] | None = None
        self._interrupted = False

    @property
    def connected(self) -> list[NodeEntry]:
        return [node for node in self.nodes.values() if node.lines is not None]

    @property
    def total(self) -> int:
        """The number of ranks on all nodes."""
        return sum(node.ranks for node in self.nodes.values())

    def first_rank(self, index: int) -> int:
        """The first rank of the node with this number."""
        return sum(self.nodes[before].ranks for before in range(index))

    def missing(self) -> str:
        """The nodes that have not come, in words."""
        absent = [str(i) for i in range(self.count) if i not in self.nodes]
        if len(absent) == 1:
            return f"node {absent[0]} has"
        return f"nodes {', '.join(absent[:8])}{', ...' if len(absent) > 8 else ''} have"

    def start(self) -> list[NodeEntry]:
        """Let the ranks of all nodes start; returns the nodes in order."""
        self.gathering, self._failures = False, []
        nodes = [self.nodes[index] for index in range(self.count)]
        for node in nodes:
            node.ended, node.step, node.still, node.ready = None, None, None, True
            node.heard_at = time.monotonic()
        return nodes

    def wrong(self, hello: Message) -> tuple[str, str] | None:
        """Why this node cannot take part and what to do, or None if it can."""
        index, ranks, count = hello.get("node"), hello.get("ranks"), self.count
        if hello.get("version") != connections.VERSION:
            return "node 0 runs another version of flatout", "install the same on all nodes"
        if not isinstance(index, int) or not 0 <= index < count:
            return f"it is node {index}, and node 0 expects {count} nodes, counted from 0", ""
        if not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
            return f"it has {ranks} ranks", ""
        if not self.gathering:
            return LATE, ""
        present = self.nodes.get(index)
        if present is not None and present.lines is not None:
            return (
                f"two nodes say that they are node {index}: {present.name} and {hello.get('name')}",
                "give each node a number of its own (FLATOUT_NODE, NODE_RANK)",
            )
        first = next((n for n in self.nodes.values() if n.lines is not None), None)
        if first is not None and first.program != str(hello.get("program")):
            return (
                f"it would run another program than {first.name}: script, plan, options or flatout "
                "differ",
                "put the same files on all nodes, and start them with the same options",
            )
        return None

    def take(self, node: NodeEntry, message: Message) -> None:
        """Account for what a node has said."""
        if "beat" in message:
            step = message["beat"]
            node.step = step if isinstance(step, int) else node.step
            node.still = decode(StandStill, message.get("still"))
        elif self.gathering and "ready" not in message:
            return  # from ranks that have been ended
        elif "failed" in message:
            failure = decode(RankFailure, message["failed"])
            if failure is not None:
                failure = dataclasses.replace(failure, node=self.name(node))
                crash, only_lost = str(message.get("crash", "")), bool(message.get("lost"))
                self._failures.append((time.monotonic(), failure, crash, only_lost))
        elif "refused" in message:
            self._refused = (str(message["refused"]), str(message.get("next", "")))
        elif "signal" in message:
            self._interrupted = self._interrupted or bool(message.get("ends"))
        elif "ready" in message:
            node.ready = True
        elif "ended" in message:
            node.ended, node.ended_at = int(message["ended"]), time.monotonic()

    def still(self) -> Message:
        """Which nodes' ranks wait, and how far behind the others are."""
        seen = {node.index: node.still for node in self.nodes.values() if node.still is not None}
        behind = [still.behind for still in seen.values() if still.behind is not None]
        return {
            "waits": [index for index, still in seen.items() if still.waits][:2],
            "least": min(behind, default=None),
            "most": max(behind, default=None),
        }

    def name(self, node: NodeEntry) -> str:
        """Its host name, with its number if several nodes have the same name."""
        names = Counter(each.name for each in self.nodes.values())
        return node.name if names[node.name] == 1 else f"{node.name}/{node.index}"

    def verdict(self, now: float) -> NodeVerdict | None:
        """How the job has ended, or None if it goes on or that is not known yet."""
        if self._refused is not None:
            return NodeVerdict(refused=self._refused)
        causes = [entry for entry in self._failures if not entry[3]]
        if causes:
            return NodeVerdict(causes[0][1], causes[0][2])
        lost = [node for node in self.nodes.values() if node.ended is None and self.gone(node, now)]
        if lost and not self._interrupted:
            said = "its connection broke"
            if lost[0].lines:
                said = f"it has sent nothing for {now - lost[0].heard_at:.0f} s"
            return NodeVerdict(self._failure(lost[0], "gone", said, wire.LOST_EXIT))
        for node in lost:
            node.ended, node.ended_at = 1, now
        if self._failures:
            return self._lost_only(now)
        if all(node.ended is not None for node in self.nodes.values()):
            return NodeVerdict()
        return None

    def gone(self, node: NodeEntry, now: float) -> bool:
        """Whether nothing can be heard of the node any more."""
        return node.lines is None or now - node.heard_at > self._limits.silent_s

    def _failure(
        self, node: NodeEntry, ending: RankEnding, error: str, returncode: int = 1
    ) -> RankFailure:
        """The failure of a whole node: its first rank stands for it."""
        return RankFailure(
            rank=self.first_rank(node.index),
            size=self.total,
            ending=ending,
            returncode=returncode,
            error=error,
            step=node.step,
            node=self.name(node),
        )

    def _lost_only(self, now: float) -> NodeVerdict | None:
        """Ranks have lost others: wait for the cause, then name the node that left first."""
        when, failure, crash, _ = self._failures[0]
        quiet = [
            node
            for node in self.nodes.values()
            if node.ended is None and now - node.heard_at > 3 * self._limits.beat_s
        ]
        if now - when < self._limits.settle_s or quiet:
            return None
        orderly = [node for node in self.nodes.values() if node.ended == 0]
        if not orderly:
            return NodeVerdict(failure, crash)
        first = min(orderly, key=lambda node: node.ended_at)
        said = "it ended normally while the others still trained"
        return NodeVerdict(self._failure(first, "early", said))
