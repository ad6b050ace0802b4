"""Node 0 of several: it waits for the others, numbers all ranks, and tells who failed first.

One thread does everything. What the nodes say decides, and their silence: a rank that fails is
reported by its own node; a node whose connection breaks, or of which nothing is heard, is gone.
"""

from __future__ import annotations

import dataclasses
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from flatout.nouns.decoding import decode
from flatout.nouns.nodes import NodeLayout, NodeVerdict
from flatout.nouns.ranks import RankFailure
from flatout.running import node_lines, node_ports
from flatout.running.node_lines import Lines, Message, NotANode

MOST_RANKS = 1024
"""Of one node."""
MOST_NAME = 253
"""Characters of a host name."""


@dataclass(frozen=True)
class NodeLimits:
    """How long is waited for what."""

    wait_s: float = 600.0
    """For all nodes to come."""
    hello_s: float = 10.0
    """For what has connected to say who it is."""
    beat_s: float = 1.0
    """Between two signs of life."""
    silent_s: float = 20.0
    """A node of which nothing is heard for so long is gone."""
    settle_s: float = 2.0
    """For the cause, where a rank has only lost another one."""
    leave_s: float = 5.0
    """For the nodes to hear how it ended."""
    interrupted_s: float = 60.0
    """After a signal to the job, for the other nodes to end."""


class _Node:
    """One node, as the leader knows it."""

    def __init__(self, index: int, hello: Message, lines: Lines) -> None:
        self.index = index
        self.lines: Lines | None = lines
        self.ranks = int(hello["ranks"])
        self.name = str(hello["name"])[:MOST_NAME]
        self.program = str(hello["program"])
        self.heard_at = time.monotonic()
        self.step: int | None = None
        self.waits = False
        self.ended: int | None = None
        self.ended_at = 0.0


class _Guest:
    """A connection that has not said yet which node it is."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.challenge = node_lines.nonce()
        self.since = time.monotonic()


class NodeLeader:
    """Listens where the nodes meet, from now on until `close`."""

    def __init__(self, nodes: NodeLayout, seed: int, limits: NodeLimits, restarts: int = 0) -> None:
        """restarts: how often the ranks may be started again. Raises UserError."""
        self._nodes_asked, self._limits, self._seed = nodes, limits, seed
        self._restarts = restarts
        self._listener = node_ports.listening(nodes.leader, nodes.port)
        self.address = self._own_address()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._guests: list[_Guest] = []
        self._nodes: dict[int, _Node] = {}
        self._gathering, self._over = True, False
        self._deadline = time.monotonic() + limits.wait_s
        self._failures: list[tuple[float, RankFailure, str, bool]] = []
        """(when, what, its traceback, whether it is only the consequence of another)."""
        self._refused: tuple[str, str] | None = None
        self._interrupted = False
        self._reserved: socket.socket | None = None
        self._closing_at: float | None = None
        self._thread = threading.Thread(target=self._serve, name="flatout nodes", daemon=True)
        self._thread.start()

    def _own_address(self) -> tuple[str, int]:
        """As this machine itself reaches it."""
        host, port = self._listener.getsockname()[:2]
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port

    def close(self) -> None:
        """Let the nodes hear how it ended, then stop."""
        self._closing_at = time.monotonic() + self._limits.leave_s
        self._thread.join(self._limits.leave_s + 5.0)

    # The loop -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        beat_at = 0.0
        try:
            while not self._done():
                for key, _ in self._selector.select(0.05):
                    self._readable(key)
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + self._limits.beat_s
                    self._beat()
                self._drop_strangers(now)
                for node in self._connected():
                    self._safely(node, node.lines.flush if node.lines else lambda: None)
                self._decide(now)
        finally:
            self._shut()

    def _beat(self) -> None:
        own = self._nodes.get(0)
        waits = [node.index for node in self._nodes.values() if node.waits]
        self._tell(beat=1, waits=waits, step=own.step if own is not None else None)

    def _done(self) -> bool:
        at = self._closing_at
        if at is None:
            return False
        return time.monotonic() > at or (self._over and not self._connected())

    def _shut(self) -> None:
        self._listener.close()
        for lines in [*(g.lines for g in self._guests), *(n.lines for n in self._connected())]:
            if lines is not None:
                lines.close()
        if self._reserved is not None:
            self._reserved.close()
        self._selector.close()

    def _readable(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            self._accept()
        elif isinstance(key.data, _Guest):
            self._hear_guest(key.data)
        else:
            self._hear(key.data)

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            if len(self._guests) >= 2 * self._nodes_asked.count + 8:
                connection.close()  # somebody only connects
                return
            guest = _Guest(Lines(connection))
            self._guests.append(guest)
            self._selector.register(connection, selectors.EVENT_READ, guest)
            guest.lines.send(nonce=guest.challenge, version=node_lines.VERSION)

    def _drop_strangers(self, now: float) -> None:
        for guest in [g for g in self._guests if now - g.since > self._limits.hello_s]:
            self._forget(guest, close=True)

    def _forget(self, guest: _Guest, close: bool) -> None:
        with suppress(ValueError):
            self._guests.remove(guest)
        with suppress(KeyError, ValueError):
            self._selector.unregister(guest.lines.socket)
        if close:
            guest.lines.close()

    # Who is there -------------------------------------------------------------------------------

    def _hear_guest(self, guest: _Guest) -> None:
        try:
            messages = guest.lines.receive()
        except (OSError, NotANode):
            self._forget(guest, close=True)
            return
        if not messages:
            return
        hello = messages[0]
        if not node_lines.proves(hello.get("proof"), self._nodes_asked.job, guest.challenge, "node"):
            self._turn_away(guest, "it belongs to another job: FLATOUT_JOB differs", "")
            return
        wrong = self._wrong(hello)
        if wrong:
            self._turn_away(guest, *wrong)
            return
        self._welcome(guest, hello)

    def _turn_away(self, guest: _Guest, reason: str, next_step: str) -> None:
        with suppress(OSError):
            guest.lines.send(error=reason, next=next_step)
        self._forget(guest, close=True)

    def _wrong(self, hello: Message) -> tuple[str, str] | None:
        """Why this node cannot take part, and what to do."""
        index, ranks, count = hello.get("node"), hello.get("ranks"), self._nodes_asked.count
        if hello.get("version") != node_lines.VERSION:
            return "node 0 runs another version of flatout", "install the same on all nodes"
        if not isinstance(index, int) or not 0 <= index < count:
            return f"it is node {index}, and node 0 expects {count} nodes, counted from 0", ""
        if not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
            return f"it has {ranks} ranks", ""
        present = self._nodes.get(index)
        if present is not None and present.lines is not None:
            return (
                f"two nodes say that they are node {index}: {present.name} and {hello.get('name')}",
                "give each node a number of its own (FLATOUT_NODE, NODE_RANK)",
            )
        if not self._gathering:
            return "the job has started without it", ""
        first = next((n for n in self._nodes.values() if n.lines is not None), None)
        if first is not None and first.program != str(hello.get("program")):
            return (
                f"it would run another program than {first.name}: script, plan or flatout differ",
                "put the same files on all nodes",
            )
        return None

    def _welcome(self, guest: _Guest, hello: Message) -> None:
        self._forget(guest, close=False)
        node = _Node(int(hello["node"]), hello, guest.lines)
        self._nodes[node.index] = node
        self._selector.register(guest.lines.socket, selectors.EVENT_READ, node)
        answer = node_lines.proof(self._nodes_asked.job, str(hello.get("nonce")), "leader")
        self._safely(node, lambda: guest.lines.send(welcome=answer))

    # What they say ------------------------------------------------------------------------------

    def _connected(self) -> list[_Node]:
        return [node for node in self._nodes.values() if node.lines is not None]

    def _safely(self, node: _Node, action: Callable[[], None]) -> None:
        """A broken connection makes the node gone."""
        try:
            action()
        except (OSError, NotANode):
            self._lose(node)

    def _lose(self, node: _Node) -> None:
        if node.lines is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(node.lines.socket)
            node.lines.close()
            node.lines = None
        if self._gathering:
            del self._nodes[node.index]  # it may come again

    def _hear(self, node: _Node) -> None:
        if node.lines is None:
            return
        try:
            messages = node.lines.receive()
        except (OSError, NotANode):
            self._lose(node)
            return
        node.heard_at = time.monotonic()
        for message in messages:
            self._take(node, message)

    def _take(self, node: _Node, message: Message) -> None:
        if "beat" in message:
            step = message["beat"]
            node.step = step if isinstance(step, int) else node.step
            node.waits = bool(message.get("waits"))
        elif "failed" in message:
            failure = decode(RankFailure, message["failed"])
            if failure is not None:
                failure = dataclasses.replace(failure, node=self._name(node))
                crash, only_lost = str(message.get("crash", "")), bool(message.get("lost"))
                self._failures.append((time.monotonic(), failure, crash, only_lost))
        elif "refused" in message:
            self._refused = (str(message["refused"]), str(message.get("next", "")))
        elif "signal" in message:
            self._interrupted = self._interrupted or bool(message.get("ends"))
            self._tell_others(node, signal=message["signal"])
        elif "ended" in message:
            node.ended, node.ended_at = int(message["ended"]), time.monotonic()

    def _tell(self, **message: object) -> None:
        for node in self._connected():
            self._send(node, message)

    def _tell_others(self, but: _Node, **message: object) -> None:
        for node in self._connected():
            if node is not but:
                self._send(node, message)

    def _send(self, node: _Node, message: Message) -> None:
        lines = node.lines
        if lines is not None:
            self._safely(node, lambda: lines.send(**message))

    def _name(self, node: _Node) -> str:
        """Its host name; with its number where several have the same one."""
        names = Counter(each.name for each in self._nodes.values())
        return node.name if names[node.name] == 1 else f"{node.name}/{node.index}"

    # Deciding -----------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        if self._over:
            return
        if self._gathering:
            self._gather(now)
            return
        verdict = self._verdict(now)
        if verdict is not None:
            self._end(verdict)

    def _gather(self, now: float) -> None:
        count = self._nodes_asked.count
        if len(self._connected()) == count:
            self._start()
        elif now > self._deadline:
            missing = [str(i) for i in range(count) if i not in self._nodes]
            which = f"node {missing[0]} has" if len(missing) == 1 else (
                f"nodes {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''} have"
            )
            reason = (
                f"{which} not come within {self._limits.wait_s:.0f} s; "
                f"{len(self._connected())} of {count} nodes are there"
            )
            self._tell(error=reason, next="start flatout on each node, or give --nodes-wait more")
            self._over = True

    def _start(self) -> None:
        nodes = [self._nodes[index] for index in range(self._nodes_asked.count)]
        firsts, total = [], 0
        for node in nodes:
            firsts.append(total)
            total += node.ranks
            node.ended, node.step, node.waits = None, None, False
            node.heard_at = time.monotonic()
        if self._reserved is not None:
            self._reserved.close()
        self._reserved, port = node_ports.reserved()
        self._gathering = False
        host = node_ports.reachable(n.lines.socket for n in nodes[1:] if n.lines is not None)
        names = [self._name(node) for node in nodes]
        for node in nodes:
            own = host if node.index == 0 else ""
            start = {"firsts": firsts, "total": total, "names": names, "port": port, "host": own}
            self._send(node, {"start": {**start, "seed": self._seed}})

    def _verdict(self, now: float) -> NodeVerdict | None:
        """How it has ended; None: it goes on, or it is not known yet."""
        if self._refused is not None:
            return NodeVerdict(refused=self._refused)
        causes = [entry for entry in self._failures if not entry[3]]
        if causes:
            return NodeVerdict(causes[0][1], causes[0][2])
        lost = [node for node in self._nodes.values() if node.ended is None and self._gone(node, now)]
        if lost and not self._interrupted:
            return NodeVerdict(self._gone_failure(lost[0], now))
        for node in lost:
            node.ended, node.ended_at = 1, now
        if self._failures:
            return self._lost_only(now)
        if all(node.ended is not None for node in self._nodes.values()):
            return NodeVerdict()
        return None

    def _gone(self, node: _Node, now: float) -> bool:
        return node.lines is None or now - node.heard_at > self._limits.silent_s

    def _gone_failure(self, node: _Node, now: float) -> RankFailure:
        silent = now - node.heard_at
        said = f"nothing was heard of it for {silent:.0f} s" if node.lines else "its connection broke"
        before = [self._nodes[index].ranks for index in range(node.index)]
        return RankFailure(
            rank=sum(before),
            size=sum(each.ranks for each in self._nodes.values()),
            ending="gone",
            returncode=1,
            error=said,
            step=node.step,
            node=self._name(node),
        )

    def _lost_only(self, now: float) -> NodeVerdict | None:
        """Ranks have lost others, and no cause is known: wait for it, then name who left first."""
        when, failure, crash, _ = self._failures[0]
        quiet = [
            node
            for node in self._nodes.values()
            if node.ended is None and now - node.heard_at > 3 * self._limits.beat_s
        ]
        if now - when < self._limits.settle_s or quiet:
            return None
        orderly = [node for node in self._nodes.values() if node.ended == 0]
        if not orderly:
            return NodeVerdict(failure, crash)
        first = min(orderly, key=lambda node: node.ended_at)
        return NodeVerdict(
            RankFailure(
                rank=sum(self._nodes[index].ranks for index in range(first.index)),
                size=failure.size,
                ending="early",
                returncode=1,
                error="it ended in order while the others still trained",
                step=first.step,
                node=self._name(first),
            )
        )

    def _end(self, verdict: NodeVerdict) -> None:
        self._over = True
        failure = verdict.failure
        self._tell(
            over={
                "failure": dataclasses.asdict(failure) if failure is not None else None,
                "crash": verdict.crash,
                "refused": verdict.refused,
                "again": verdict.again,
            }
        )
