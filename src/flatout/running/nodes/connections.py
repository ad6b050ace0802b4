"""Connections between the hosts of several nodes: ports, addresses, and messages over TCP.

A message is one JSON object on a line. When a connection opens, both sides are challenged to prove
that they know the job's token; the token itself is never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flatout.nouns.errors import UserError

Message = dict[str, Any]
VERSION = 2
MOST_BYTES = 2**16
"""The longest line; a side that sends more is no node of ours."""
MOST_WAITING_BYTES = 2**20
"""The most that is kept for a side that does not read."""
CHUNK = 2**14


@dataclass(frozen=True)
class NodeLimits:
    """How long to wait for what."""

    wait_s: float = 600.0
    """For all nodes to come."""
    hello_s: float = 10.0
    """For a new connection to say who it is."""
    beat_s: float = 1.0
    """Between two signs of life."""
    silent_s: float = 20.0
    """A node is gone when nothing has been heard of it for so long."""
    settle_s: float = 2.0
    """For the cause, if a rank has only lost another one."""
    look_s: float = 300.0
    """For node 0 to see what the program is made for, before its ranks start."""
    leave_s: float = 5.0
    """For the nodes to hear how the job ended."""
    interrupted_s: float = 60.0
    """After a signal to the job, for the other nodes to end."""


def listening(leader: str, port: int) -> socket.socket:
    """A socket where the nodes meet: at the leader's address if that is ours, else at all of ours.

    A name may resolve to 127.0.1.1 on its own machine, where no other machine would reach it.
    Raises UserError.
    """
    error: OSError | None = None
    for family, host in _hosts(leader):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                if sys.platform != "win32":
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6 and host == "::":
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.bind((host, port))
                listener.listen(128)
                listener.setblocking(False)
            except OSError:
                listener.close()
                raise
            return listener
        except OSError as failed:
            error = failed
    taken = f"port {port} of {leader} cannot be used: {error}"
    raise UserError(taken, "choose another port: FLATOUT_LEADER=host:port, or MASTER_PORT", 1)


def _hosts(leader: str) -> list[tuple[socket.AddressFamily, str]]:
    everywhere = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, leader)
            return [(family, leader), *everywhere]
    return everywhere


def reserved() -> tuple[socket.socket | None, int]:
    """A free port, and a socket that keeps it from others until rank 0 opens it, or None.

    The socket is bound but does not listen: rank 0 may still bind it (torch sets SO_REUSEADDR too).
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    port = int(reserved.getsockname()[1])
    if sys.platform == "win32":  # the port would be shared
        reserved.close()
        return None, port
    return reserved, port


def reachable(connections: Iterable[socket.socket]) -> str:
    """The address by which the other sides of these connections have reached this machine."""
    own = [str(connection.getsockname()[0]).removeprefix("::ffff:") for connection in connections]
    outer = [host for host in own if not host.startswith("127.") and host != "::1"]
    return next(iter([*outer, *own]), "127.0.0.1")


class NotANode(Exception):  # noqa: N818 - says what the other side is
    """The other side does not speak as a node does."""


class NodeLines:
    """One connection that never blocks: `receive` and `flush` do what can be done now."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._inbox = bytearray()
        self._outbox = bytearray()

    def send(self, **message: Any) -> None:
        """Start sending a message. Raises OSError if the connection is broken."""
        self._outbox += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much of what waits as the other side takes. Raises OSError."""
        try:
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox[:CHUNK])]
        except BlockingIOError:
            if len(self._outbox) > MOST_WAITING_BYTES:
                raise ConnectionError("it reads nothing") from None

    def receive(self) -> list[Message]:
        """The messages that have come.

        Raises ConnectionError if the connection has ended, NotANode if a line is no message.
        """
        ended = False
        with suppress(BlockingIOError):
            while len(self._inbox) <= MOST_BYTES:
                data = self.socket.recv(CHUNK)
                if not data:
                    ended = True
                    break
                self._inbox += data
        *lines, rest = bytes(self._inbox).split(b"\n")
        self._inbox = bytearray(rest)
        messages = [_message(line) for line in lines]
        if len(rest) > MOST_BYTES:
            raise NotANode(f"a line of more than {MOST_BYTES} bytes")
        if ended and not messages:
            raise ConnectionError("the connection was closed")
        return messages

    def close(self) -> None:
        with suppress(OSError):
            self.socket.close()


def _message(line: bytes) -> Message:
    if len(line) > MOST_BYTES:
        raise NotANode(f"a line of more than {MOST_BYTES} bytes")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotANode("no JSON") from error
    if not isinstance(message, dict):
        raise NotANode("no JSON object")
    return message


def nonce() -> str:
    """A challenge that has never been used."""
    return secrets.token_hex(16)


def proof(token: str, challenge: str, side: str) -> str:
    """Proof of knowing the token. side: who proves it, so that no proof can be sent back."""
    text = f"{side}\n{challenge}".encode()
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def proves(given: object, token: str, challenge: str, side: str) -> bool:
    """Whether `given` is that proof; compared in constant time."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode(), proof(token, challenge, side).encode()
    )
