"""A node's connection to the leader: joining, signs of life, reports, and how the job ended.

Node 0 has one too, to the leader in its own process.
"""

from __future__ import annotations

import dataclasses
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from flatout.nouns.decoding import decode
from flatout.nouns.errors import UserError
from flatout.nouns.nodes import (
    NativeProgram,
    NodeLayout,
    NodeRound,
    NodesStill,
    NodeVerdict,
    StandStill,
)
from flatout.nouns.ranks import RankFailure
from flatout.running.nodes import connections
from flatout.running.nodes.connections import Message, NodeLimits, NodeLines, NotANode
from flatout_agent import wire

RETRY_S = 0.2
CONNECT_S = 5.0
CRASH_CHARACTERS = 16_000
"""How much of the end of a traceback is sent to the leader."""


class _Later(Exception):  # noqa: N818 - no error yet
    """Node 0 is there, but has started without this node (`book.LATE`)."""


class NodeLink:
    """Connected from `join` to `close`; a thread sends and receives."""

    def __init__(self, nodes: NodeLayout, address: tuple[str, int], limits: NodeLimits) -> None:
        """address: that of the leader, as this node reaches it."""
        self._nodes, self._address, self._limits = nodes, address, limits
        self.index = nodes.index
        self.name = nodes.name or socket.gethostname()
        self.step: int | None = None
        """The last step of this node's ranks; part of each sign of life."""
        self.still: StandStill | None = None
        """Set if its ranks have taken no step for long; part of each sign of life."""
        self.others = NodesStill()
        """The same for all other nodes, as last told by the leader."""
        self.signals: deque[int] = deque()
        """Signals that other nodes have had, to be passed on to our ranks."""
        self.verdict: NodeVerdict | None = None
        self.round: NodeRound | None = None
        self._refusal: tuple[str, str] | None = None
        self._lines: NodeLines | None = None
        self._rest: list[Message] = []
        self._leader_step: int | None = None
        self._lock = threading.Lock()
        self._heard_at = time.monotonic()
        self._closed = False
        self._thread: threading.Thread | None = None

    # Joining ------------------------------------------------------------------------------------

    def join(self, ranks: int, program: str, native: NativeProgram | None = None) -> NodeRound:
        """Wait until all nodes are there. Raises UserError if they do not come.

        program: what this node runs, the same on all; native: what node 0 has seen of it.
        """
        deadline = time.monotonic() + self._limits.wait_s
        seen = dataclasses.asdict(native) if native is not None else None
        self._lines = self._greeted(deadline, {"ranks": ranks, "program": program, "native": seen})
        self._heard_at = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="flatout node", daemon=True)
        self._thread.start()
        return self._begun()

    def rejoin(self) -> NodeRound:
        """Wait until all nodes are ready to start their ranks again. Raises UserError."""
        self.round = self.verdict = self.step = None
        self.still, self.others = None, NodesStill()
        self.signals.clear()
        self.send(ready=True)
        return self._begun()

    def _begun(self) -> NodeRound:
        # The leader's own limit comes first: it knows who is missing.
        limits = self._limits
        deadline = time.monotonic() + limits.wait_s + limits.look_s + limits.hello_s
        while self.round is None:
            if self._refusal is not None:
                reason, next_step = self._refusal
                own = f"node {self._nodes.index} ({self.name})"
                raise UserError(f"{own}: {reason}", next_step or None, 1)
            broken = self._thread is not None and not self._thread.is_alive()
            if broken or self.verdict is not None or time.monotonic() > deadline:
                ended = f"node 0 ({self._where}) has ended, or does not answer"
                raise UserError(ended, "read its output", 1)
            time.sleep(0.02)
        return self.round

    @property
    def _where(self) -> str:
        return f"{self._nodes.leader}:{self._nodes.port}"

    def _greeted(self, deadline: float, own: Message) -> NodeLines:
        """A connection on which both sides have proved that they belong to the job."""
        error: object = "nobody listens"
        while time.monotonic() < deadline:
            try:
                lines = NodeLines(socket.create_connection(self._address, timeout=CONNECT_S))
            except OSError as failed:  # it may not be up yet, or its name not known
                error = failed
                time.sleep(RETRY_S)
                continue
            try:
                return self._hello(lines, own)
            except (OSError, _Later) as failed:
                error = failed
            except NotANode as failed:
                error = f"the program that listens there is not node 0 of this job: {failed}"
            lines.close()
            time.sleep(RETRY_S)
        raise UserError(
            f"node {self._nodes.index} ({self.name}) did not reach node 0 at {self._where} within "
            f"{self._limits.wait_s:.0f} s: {error}",
            "start flatout on node 0 too; a firewall between the nodes must let that port through",
            1,
        )

    def _hello(self, lines: NodeLines, own: Message) -> NodeLines:
        challenge = str(self._answer(lines).get("nonce", ""))
        nonce = connections.nonce()
        lines.send(
            node=self._nodes.index,
            proof=connections.proof(self._nodes.job, challenge, "node"),
            nonce=nonce,
            name=self.name,
            version=connections.VERSION,
            **own,
        )
        answer = self._answer(lines)
        if answer.get("later"):
            raise _Later(str(answer.get("error")))
        if "error" in answer:
            lines.close()
            raise UserError(
                f"node 0 at {self._where} refuses node {self._nodes.index} ({self.name}): "
                f"{answer['error']}",
                str(answer.get("next") or "") or None,
                1,
            )
        if not connections.proves(answer.get("welcome"), self._nodes.job, nonce, "leader"):
            raise NotANode("it does not know the job's token (FLATOUT_JOB)")
        self._lines = lines
        for message in self._rest:
            self._take(message)
        return lines

    def _answer(self, lines: NodeLines) -> Message:
        """The next message; those that come with it are kept."""
        deadline = time.monotonic() + self._limits.hello_s
        with selectors.DefaultSelector() as selector:
            selector.register(lines.socket, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                selector.select(0.1)
                if messages := lines.receive():
                    self._rest = messages[1:]
                    return messages[0]
        raise NotANode("it says nothing")

    # While the ranks run ------------------------------------------------------------------------

    def send(self, **message: Any) -> None:
        """Tell the leader, if it is still there."""
        with self._lock, suppress(OSError):
            if self._lines is not None:
                self._lines.send(**message)

    def failed(self, failure: RankFailure, crash: str, lost: bool) -> None:
        """Report a rank here that has ended the run. lost: only because another one was gone."""
        crash = crash[-CRASH_CHARACTERS:]
        self.send(failed=dataclasses.asdict(failure), crash=crash, lost=lost)

    def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._thread.join(2.0)
        if self._lines is not None:
            self._lines.close()

    def _serve(self) -> None:
        lines, beat_at = self._lines, 0.0
        assert lines is not None
        with selectors.DefaultSelector() as selector:
            selector.register(lines.socket, selectors.EVENT_READ)
            while not self._closed:
                selector.select(0.05)
                now = time.monotonic()
                try:
                    with self._lock:
                        messages = lines.receive()
                        lines.flush()
                except (OSError, NotANode):
                    self._lost("its connection broke")
                    return
                if messages:
                    self._heard_at = now
                for message in messages:
                    self._take(message)
                if now >= beat_at:
                    beat_at = now + self._limits.beat_s
                    still = self.still
                    own = dataclasses.asdict(still) if still is not None else None
                    self.send(beat=self.step, still=own)
                if now - self._heard_at > self._limits.silent_s:
                    self._lost(f"it has sent nothing for {now - self._heard_at:.0f} s")
                    return

    def _take(self, message: Message) -> None:
        if "beat" in message:
            waits = [index for index in message["waits"] if index != self._nodes.index]
            self.others = NodesStill(bool(waits), message["least"], message["most"])
            self._leader_step = message.get("step")
        elif "signal" in message:
            self.signals.append(int(message["signal"]))
        elif "start" in message:
            start = message["start"]
            leader = start["host"] or self._nodes.leader  # node 0 learns its own address
            assert self._lines is not None
            host = start["host"] or connections.reachable([self._lines.socket])
            names = tuple(str(name) for name in start["names"])
            store = f"[{leader}]" if ":" in leader else leader
            self.round = NodeRound(
                tuple(start["firsts"]),
                int(start["total"]),
                names,
                f"{store}:{start['port']}",
                host,
                int(start["seed"]),
                decode(NativeProgram, start.get("native")),
            )
        elif "error" in message:
            self._refusal = str(message["error"]), str(message.get("next") or "")
        elif "over" in message:
            self.verdict = decode(NodeVerdict, message["over"]) or NodeVerdict()

    def _lost(self, how: str) -> None:
        """Node 0 is gone: nobody else can say how it ended."""
        if self.verdict is not None:
            return
        names, total = ((), 0) if self.round is None else (self.round.names, self.round.total)
        name = names[0] if names else self._where
        step = (
            self.step if self._leader_step is None else self._leader_step
        )  # all nodes take the same steps
        failure = RankFailure(0, total, "gone", wire.LOST_EXIT, how, step, node=name)
        self.verdict = NodeVerdict(failure)
