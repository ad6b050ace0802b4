"""Node 0 of several: it waits for the others, numbers all ranks, and tells who failed first.

One thread does everything. What it concludes from what the nodes say is in `book`.

torchrun's agents cannot be used for this (tried with torch 2.13). Each reports the first failure
among its own ranks, so every other node blames a rank that only lost the one that failed. Rank 0
may be on any node. And they do not handle SIGUSR1, by which a cluster warns.
"""

from __future__ import annotations

import dataclasses
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from flatout.nouns.nodes import NodeLayout, NodeVerdict
from flatout.nouns.ranks import RankFailure
from flatout.running.nodes import connections
from flatout.running.nodes.book import LATE, NodeBook, NodeEntry
from flatout.running.nodes.connections import Message, NodeLimits, NodeLines, NotANode


class _Guest:
    """A connection that has not yet said which node it is."""

    def __init__(self, lines: NodeLines) -> None:
        self.lines = lines
        self.challenge = connections.nonce()
        self.since = time.monotonic()


class NodeLeader:
    """Listens where the nodes meet, until `close`."""

    def __init__(
        self,
        nodes: NodeLayout,
        seed: int,
        limits: NodeLimits,
        restarts: int = 0,
        may_help: Callable[[RankFailure], bool] = lambda failure: False,
    ) -> None:
        """restarts: how often the ranks may be started again; may_help: after which failures.

        Raises UserError.
        """
        self._layout, self._limits, self._seed = nodes, limits, seed
        self._restarts, self._may_help = restarts, may_help
        self._listener = connections.listening(nodes.leader, nodes.port)
        host, port = self._listener.getsockname()[:2]
        # "::" takes both kinds of addresses.
        self.address = ("127.0.0.1" if host in ("0.0.0.0", "::") else host), port
        """As this machine itself reaches it."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._guests: list[_Guest] = []
        self._book = NodeBook(nodes.count, limits)
        self._over = False
        self._deadline = time.monotonic() + limits.wait_s
        self._reserved: socket.socket | None = None
        self._closing_at: float | None = None
        self._thread = threading.Thread(target=self._serve, name="flatout nodes", daemon=True)
        self._thread.start()

    def wait_anew(self, besides_s: float = 0.0) -> None:
        """Start the nodes' time anew, with `besides_s` more: node 0 is busy."""
        self._deadline = time.monotonic() + self._limits.wait_s + besides_s

    def close(self) -> None:
        """Let the nodes hear how the job ended, then stop."""
        self._closing_at = time.monotonic() + self._limits.leave_s
        self._thread.join(self._limits.leave_s + 5.0)

    # The loop -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        beat_at = 0.0
        try:
            while not self._done():
                for key, _ in self._selector.select(0.05):
                    if key.data is None:
                        self._accept()
                    elif isinstance(key.data, _Guest):
                        self._hear_guest(key.data)
                    else:
                        self._hear(key.data)
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + self._limits.beat_s
                    own = self._book.nodes.get(0)
                    step = own.step if own is not None else None
                    self._tell(beat=1, step=step, **self._book.still())
                for guest in [g for g in self._guests if now - g.since > self._limits.hello_s]:
                    self._forget(guest, close=True)
                for node in self._book.connected:
                    self._safely(node, node.lines.flush if node.lines else lambda: None)
                self._decide(now)
        finally:
            self._listener.close()
            for lines in [
                *(g.lines for g in self._guests),
                *(n.lines for n in self._book.connected),
            ]:
                if lines is not None:
                    lines.close()
            if self._reserved is not None:
                self._reserved.close()
            self._selector.close()

    def _done(self) -> bool:
        at = self._closing_at
        if at is None:
            return False
        return time.monotonic() > at or (self._over and not self._book.connected)

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            if len(self._guests) >= 2 * self._layout.count + 8:
                connection.close()  # somebody only connects
                return
            guest = _Guest(NodeLines(connection))
            self._guests.append(guest)
            self._selector.register(connection, selectors.EVENT_READ, guest)
            guest.lines.send(nonce=guest.challenge, version=connections.VERSION)

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
        if not connections.proves(hello.get("proof"), self._layout.job, guest.challenge, "node"):
            self._turn_away(guest, "it belongs to another job: FLATOUT_JOB differs", "")
            return
        wrong = self._book.wrong(hello)
        if wrong:
            self._turn_away(guest, *wrong)
            return
        self._forget(guest, close=False)
        node = NodeEntry(int(hello["node"]), hello, guest.lines)
        self._book.nodes[node.index] = node
        self._selector.register(guest.lines.socket, selectors.EVENT_READ, node)
        answer = connections.proof(self._layout.job, str(hello.get("nonce")), "leader")
        self._safely(node, lambda: guest.lines.send(welcome=answer))

    def _turn_away(self, guest: _Guest, reason: str, next_step: str) -> None:
        with suppress(OSError):
            guest.lines.send(error=reason, next=next_step, later=reason == LATE)
        self._forget(guest, close=True)

    # What they say ------------------------------------------------------------------------------

    def _safely(self, node: NodeEntry, action: Callable[[], None]) -> None:
        """If the connection breaks, the node is gone."""
        try:
            action()
        except (OSError, NotANode):
            self._lose(node)

    def _lose(self, node: NodeEntry) -> None:
        if node.lines is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(node.lines.socket)
            node.lines.close()
            node.lines = None
        if self._book.gathering:
            self._book.nodes.pop(node.index, None)  # it may come again

    def _hear(self, node: NodeEntry) -> None:
        if node.lines is None:
            return
        try:
            messages = node.lines.receive()
        except (OSError, NotANode):
            self._lose(node)
            return
        node.heard_at = time.monotonic()
        try:
            for message in messages:
                self._book.take(node, message)
                if "signal" in message:
                    number = int(message["signal"])
                    for other in self._book.connected:
                        if other is not node:
                            self._send(other, {"signal": number})
        except (TypeError, ValueError):  # no node of ours says this
            self._lose(node)

    def _tell(self, **message: object) -> None:
        for node in self._book.connected:
            self._send(node, message)

    def _send(self, node: NodeEntry, message: Message) -> None:
        lines = node.lines
        if lines is not None:
            self._safely(node, lambda: lines.send(**message))

    # Deciding -----------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        if self._over:
            return
        if self._book.gathering:
            count = self._layout.count
            if len([node for node in self._book.connected if node.ready]) == count:
                self._start()
            elif now > self._deadline:
                reason = (
                    f"{self._book.missing()} not come within {self._limits.wait_s:.0f} s; "
                    f"{len(self._book.connected)} of {count} nodes are there"
                )
                self._tell(
                    error=reason, next="start flatout on each node, or give --nodes-wait more"
                )
                self._over = True
            return
        verdict = self._book.verdict(now)
        if verdict is not None:
            self._end(verdict)

    def _start(self) -> None:
        nodes = self._book.start()
        firsts, total = [self._book.first_rank(node.index) for node in nodes], self._book.total
        if self._reserved is not None:
            self._reserved.close()
        self._reserved, port = connections.reserved()
        host = connections.reachable(n.lines.socket for n in nodes[1:] if n.lines is not None)
        names = [self._book.name(node) for node in nodes]
        for node in nodes:
            own = host if node.index == 0 else ""
            start = {
                "firsts": firsts,
                "total": total,
                "names": names,
                "port": port,
                "host": own,
                "native": self._book.nodes[0].native,
            }
            self._send(node, {"start": {**start, "seed": self._seed}})

    def _end(self, verdict: NodeVerdict) -> None:
        failure = verdict.failure
        if failure is not None and self._restarts > 0 and self._may_help(failure):
            verdict = dataclasses.replace(verdict, again=True)
            self._restarts -= 1
        self._over = not verdict.again
        self._tell(
            over={
                "failure": dataclasses.asdict(failure) if failure is not None else None,
                "crash": verdict.crash,
                "refused": verdict.refused,
                "again": verdict.again,
            }
        )
        if not verdict.again:
            return
        # Nodes that are gone may come again if their engine restarts them.
        self._book.gathering, self._deadline = True, time.monotonic() + self._limits.wait_s
        for node in list(self._book.nodes.values()):
            node.ready = False
            if node.lines is None or self._book.gone(node, time.monotonic()):
                self._lose(node)
