"""Messages between the hosts of several nodes: one JSON object a line, over TCP.

A connection is opened by a challenge to both sides: each proves that it knows the job's token, and
the token itself is never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from contextlib import suppress
from typing import Any

Message = dict[str, Any]
VERSION = 2
MOST_BYTES = 2**16
"""Of a line; who sends more is no node of ours."""
MOST_WAITING_BYTES = 2**20
"""To be sent to one that does not read."""
CHUNK = 2**14


class NotANode(Exception):  # noqa: N818 - says what the other side is
    """The other side does not speak as a node does."""


class NodeLines:
    """One connection, which does not block: `receive` and `flush` do what can be done now."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._inbox = bytearray()
        self._outbox = bytearray()

    def send(self, **message: Any) -> None:
        """Put a message on its way. Raises OSError where the connection is broken."""
        self._outbox += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the other side takes it. Raises OSError."""
        try:
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox[:CHUNK])]
        except BlockingIOError:
            if len(self._outbox) > MOST_WAITING_BYTES:
                raise ConnectionError("it reads nothing") from None

    @property
    def waiting(self) -> bool:
        """There is something left to be sent."""
        return bool(self._outbox)

    def receive(self) -> list[Message]:
        """What has come. Raises ConnectionError at the end of the connection, NotANode."""
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
    """A challenge that was never there before."""
    return secrets.token_hex(16)


def proof(token: str, challenge: str, side: str) -> str:
    """That one knows the token. side: who proves it, so that no answer can be sent back."""
    text = f"{side}\n{challenge}".encode()
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def proves(given: object, token: str, challenge: str, side: str) -> bool:
    """Whether it is that proof; compared in constant time."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode(), proof(token, challenge, side).encode()
    )
